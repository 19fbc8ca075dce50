//! The random bytes of the system for this program: the runtime chooses the branches of `select!` by
//! them. On the thread of a simulation they repeat.
#![allow(unsafe_code, reason = "it has the name and signature of C")]

use std::cell::Cell;

thread_local! {
    static DRAWN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's random bytes are those of every other thread that calls this.
pub(crate) fn repeat() {
    DRAWN.set(Some(0));
}

/// SAFETY: the caller passes a buffer of `len` writable bytes, as to the function of C.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, flags: libc::c_uint) -> isize {
    let Ok(Some(drawn)) = DRAWN.try_with(Cell::get) else {
        // SAFETY: the arguments are those of the caller.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, len, flags) as isize };
    };
    DRAWN.set(Some(drawn + 1));
    for place in 0..len {
        let byte = (drawn.wrapping_mul(0x9e37_79b9) as usize + place * 31) as u8;
        // SAFETY: within the caller's buffer.
        unsafe { buffer.add(place).write(byte) };
    }
    len as isize
}
