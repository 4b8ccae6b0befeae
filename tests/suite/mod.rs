mod engine;
mod tidy;
