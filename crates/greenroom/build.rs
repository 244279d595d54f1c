//! Builds the crate again when a file of the pages is added or removed: the macro that embeds them only follows files
//! that it has seen.

fn main() {
    println!("cargo::rerun-if-changed=../../web");
    println!("cargo::rerun-if-changed=build.rs");
}
