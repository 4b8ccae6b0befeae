//! Compiles `proto/` without `protoc`.
//!
//! Event bodies are kept as the bytes that were received, because decoding and
//! encoding again would drop the fields that a newer client sent. So in the
//! generated Rust the arms of `Event.body` and `NewEvent.body` are bytes; on the
//! wire, and in the descriptors that reflection serves, they are messages.
//!
//! Maps are ordered: the same content is always encoded to the same bytes, which
//! hashes of bodies and of keyed batches are taken of.
//!
//! And it compresses the tables of OpenAI's encodings, which are two thirds of the program as
//! they are: that of today's models as it is, of the older one only the tokens.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use prost_types::{FileDescriptorSet, field_descriptor_proto::Type};

const PROTOS: [&str; 9] = [
    "proto/treering/v1/event.proto",
    "proto/treering/v1/events.proto",
    "proto/treering/v1/conversation.proto",
    "proto/treering/v1/context.proto",
    "proto/treering/v1/items.proto",
    "proto/treering/v1/tool.proto",
    "proto/treering/v1/search.proto",
    "proto/treering/v1/admin.proto",
    "proto/treering/v1/backup.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    write_token_tables(&out)?;

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(PROTOS)?;
    fs::write(
        out.join("treering_descriptor.bin"),
        compiler.encode_file_descriptor_set(),
    )?;

    let mut files = compiler.file_descriptor_set();
    bodies_as_bytes(&mut files);
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    config.btree_map(["."]);
    // What is printed as JSON is looked up in the descriptors by its name.
    config.enable_type_names();

    let services = env::var_os("CARGO_FEATURE_SERVER").is_some();
    if services {
        tonic_prost_build::configure().compile_fds_with_config(files, config)?;
    } else {
        config.compile_fds(files)?;
    }
    Ok(())
}

fn write_token_tables(out: &Path) -> Result<(), Box<dyn Error>> {
    // The highest levels take 20 s, which only a release is worth.
    let level = match env::var("PROFILE")?.as_str() {
        "release" => 19,
        _ => 3,
    };
    let write = |name: &str, table: Vec<u8>| {
        fs::write(out.join(name), zstd::bulk::compress(&table, level)?)
    };
    let today = &bpe_openai::o200k_base().bpe;
    write("o200k_base.zst", rmp_serde::to_vec(today)?)?;
    let before = &bpe_openai::cl100k_base().bpe;
    let tokens = 0..before.num_tokens() as u32;
    let tokens: Vec<&[u8]> = tokens.map(|token| before.token_bytes(token)).collect();
    write("cl100k_base.zst", rmp_serde::to_vec(&tokens)?)?;
    Ok(())
}

/// Turns the arms of the two event envelopes into bytes.
fn bodies_as_bytes(files: &mut FileDescriptorSet) {
    let messages = files
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type);
    for message in messages.filter(|m| matches!(m.name(), "Event" | "NewEvent")) {
        for field in &mut message.field {
            if field.oneof_index.is_some() {
                field.set_type(Type::Bytes);
                field.type_name = None;
            }
        }
    }
}
