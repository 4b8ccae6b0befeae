//! Compresses the tables of OpenAI's encodings, which would be two thirds of the program. The
//! program embeds the whole table of the current encoding, and only the tokens of the older one.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    write_token_tables(&PathBuf::from(env::var("OUT_DIR")?))
}

fn write_token_tables(out: &Path) -> Result<(), Box<dyn Error>> {
    // The highest levels take 20 s, so only release builds use them.
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
