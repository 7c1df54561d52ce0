//! How many tests passed? What test programs say of themselves, summed up.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
}

impl Count {
    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`; any other line counts nothing.
    pub(super) fn from_line(line: &str) -> Count {
        let Some(result) = line.strip_prefix("test result:") else {
            return Count::default();
        };
        let number = |what: &str| {
            let part = result
                .split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(what));
            part.and_then(|number| number.trim().parse().ok())
                .unwrap_or_default()
        };
        Count {
            passed: number("passed"),
            failed: number("failed"),
            skipped: number("ignored"),
        }
    }

    pub(super) fn line(self) -> String {
        let Count {
            passed,
            failed,
            skipped,
        } = self;
        let counted = format!("{passed} passed, {failed} failed");
        if skipped == 0 {
            counted
        } else {
            format!("{counted}, {skipped} skipped")
        }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_is_counted() {
        let count = Count::from_line(
            "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; finished in 0.1s",
        );
        assert_eq!(count.line(), "3 passed, 1 failed, 2 skipped");
        assert_eq!(
            Count::from_line("test a ... ok").line(),
            "0 passed, 0 failed"
        );
    }
}
