//! Copies of worlds into the memory of earlier copies.

use std::sync::Arc;

/// Shares what another has, unless both have it already.
pub(crate) fn share<T: ?Sized>(own: &mut Arc<T>, from: &Arc<T>) {
    if !Arc::ptr_eq(own, from) {
        *own = from.clone();
    }
}

/// The same for a list.
pub(crate) fn share_all<T>(own: &mut Vec<Arc<T>>, from: &[Arc<T>]) {
    own.truncate(from.len());
    own.iter_mut().zip(from).for_each(|(own, from)| share(own, from));
    own.extend_from_slice(&from[own.len()..]);
}

/// Implements `Clone` such that `clone_from` allocates as little as it can and leaves what both share.
macro_rules! copied {
    ($type:ident { shared: $($shared:ident),*; lists: $($list:ident),*; rest: $($rest:ident),* }) => {
        impl Clone for $type {
            fn clone(&self) -> Self {
                Self {
                    $($shared: self.$shared.clone(),)*
                    $($list: self.$list.clone(),)*
                    $($rest: self.$rest.clone(),)*
                }
            }

            fn clone_from(&mut self, from: &Self) {
                $($crate::copy::share(&mut self.$shared, &from.$shared);)*
                $($crate::copy::share_all(&mut self.$list, &from.$list);)*
                $(self.$rest.clone_from(&from.$rest);)*
            }
        }
    };
}
pub(crate) use copied;
