//! Compiles `proto/` without `protoc`.
//!
//! Event bodies are stored as the bytes that were received, because decoding and
//! encoding again would drop the fields of newer clients. Therefore the variants of
//! `Event.body` and `NewEvent.body` are bytes in the generated Rust; on the wire, and
//! in the descriptors that reflection serves, they are messages.
//!
//! The options of `options.proto` become code: see `bodies`, `access` and `route`.
//!
//! Maps are ordered, so that equal content is always encoded to equal bytes: bodies
//! and batches with an idempotency key are hashed.

use std::{env, error::Error, fs, path::PathBuf};

use prost_types::{FileDescriptorSet, field_descriptor_proto::Type};

#[path = "build/access.rs"]
mod access;
#[path = "build/bodies.rs"]
mod bodies;
#[path = "build/options.rs"]
mod options;
#[path = "build/route.rs"]
mod route;

const PROTOS: [&str; 11] = [
    "treering/v1/options.proto",
    "treering/v1/event.proto",
    "treering/v1/events.proto",
    "treering/v1/conversation.proto",
    "treering/v1/context.proto",
    "treering/v1/items.proto",
    "treering/v1/tool.proto",
    "treering/v1/search.proto",
    "treering/v1/shard.proto",
    "treering/v1/admin.proto",
    "treering/v1/backup.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    // The build reads the table of kinds in this file.
    println!("cargo::rerun-if-changed=../domain/kind.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let compiled = |with_comments| {
        let mut compiler = protox::Compiler::new(["../../proto"])?;
        compiler.include_imports(true);
        compiler.include_source_info(with_comments);
        compiler.open_files(PROTOS)?;
        Ok::<_, protox::Error>(compiler)
    };
    let without_comments = compiled(false)?.encode_file_descriptor_set();
    fs::write(out.join("descriptors.bin"), without_comments)?;
    let compiler = compiled(true)?;
    fs::write(
        out.join("documented_descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;

    let pool = compiler.descriptor_pool();
    fs::write(out.join("bodies.rs"), bodies::generate(&pool))?;
    fs::write(out.join("access.rs"), access::generate(&pool))?;
    fs::write(out.join("route.rs"), route::generate(&pool))?;

    let mut files = compiler.file_descriptor_set();
    bodies_as_bytes(&mut files);
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    config.btree_map(["."]);
    // Printing a message as JSON looks up its descriptor by name.
    config.enable_type_names();

    let services = env::var_os("CARGO_FEATURE_SERVICES").is_some();
    if services {
        tonic_prost_build::configure().compile_fds_with_config(files, config)?;
    } else {
        config.compile_fds(files)?;
    }
    Ok(())
}

/// Changes the type of the body variants of both envelopes to bytes.
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
