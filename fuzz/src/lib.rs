//! How does a fuzzer get at a target?
//!
//! Each program of this package is the target of its name in the operator's `fuzzing`, under libFuzzer.
//! `cargo xtask fuzz` builds them as they need it, and runs them.

#[cfg(fuzzing)]
pub use libfuzzer_sys;
#[cfg(fuzzing)]
pub use spanwire_operator::fuzzing;

/// Names the folder into which a target writes its seeds when it starts; it is there, and libFuzzer reads it.
pub const SEEDS: &str = "SPANWIRE_FUZZ_SEEDS";

/// The program of this target.
#[macro_export]
macro_rules! target {
    ($target:ident) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(
            init: $crate::sow(&$crate::fuzzing::$target::seeds()),
            |bytes: &[u8]| $crate::fuzzing::$target::run(bytes)
        );

        #[cfg(not(fuzzing))]
        fn main() -> Result<(), &'static str> {
            Err("there is no fuzzer in it: run `cargo xtask fuzz`")
        }
    };
}

/// Writes the seeds. One that cannot be written is missed, no more: libFuzzer says how many it found.
pub fn sow(seeds: &[Vec<u8>]) {
    let Some(folder) = std::env::var_os(SEEDS) else {
        return;
    };
    for (seed, number) in seeds.iter().zip(0..) {
        let file = std::path::Path::new(&folder).join(format!("{number:02}"));
        let _ = std::fs::write(file, seed);
    }
}
