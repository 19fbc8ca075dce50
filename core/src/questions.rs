//! Questions that broken variants answer with yes: without the cargo feature `mutants` each is
//! answered with no, by a constant.

/// Questions to a machine, and the variants of it whose answer is yes.
macro_rules! questions {
    ($machine:ident, $variant:ident; $($question:ident: $($mutant:ident)|+;)+) => {
        impl $machine {
            $(
                #[cfg(feature = "mutants")]
                pub(super) fn $question(&self) -> bool {
                    matches!(self.mutant, Some($($variant::$mutant)|+))
                }

                #[cfg(not(feature = "mutants"))]
                #[inline(always)]
                #[allow(clippy::unused_self, reason = "a variant looks at it")]
                pub(super) const fn $question(&self) -> bool {
                    false
                }
            )+
        }
    };
}

pub(crate) use questions;
