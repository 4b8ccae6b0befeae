mod engine;
#[cfg(feature = "import")]
mod real_data;
mod tidy;
