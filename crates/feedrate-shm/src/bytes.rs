//! Slots and leases as byte slices, for callers without `unsafe`.
//!
//! Each wrapper owns its handle, so that within this process nobody else reaches the memory through it. The other process is
//! bound by the protocol: the writer lets a slot go when it has sent it, the reader has it alone from then on.

use std::fmt;
use std::slice;

use crate::local::LocalSlot;
#[cfg(target_os = "linux")]
use crate::{arena::Slot, lease::Lease};

macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident($handle:ident)) => {
        $(#[$doc])*
        pub struct $name($handle);

        impl $name {
            /// All of it.
            pub fn as_bytes(&self) -> &[u8] {
                // SAFETY: the handle keeps `len` initialised bytes at this address alive, and `self` is borrowed for reading.
                unsafe { slice::from_raw_parts(self.0.as_mut_ptr(), self.0.len()) }
            }

            /// All of it, to write.
            pub fn as_bytes_mut(&mut self) -> &mut [u8] {
                // SAFETY: as above, and `self`, the sole owner of the handle, is borrowed for writing.
                unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr(), self.0.len()) }
            }
        }

        impl From<$handle> for $name {
            fn from(handle: $handle) -> Self {
                Self(handle)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0).finish()
            }
        }
    };
}

bytes! {
    /// A [`LocalSlot`] as bytes.
    LocalBytes(LocalSlot)
}

#[cfg(target_os = "linux")]
bytes! {
    /// A reserved [`Slot`] as bytes. To be dropped, and not written any more, once it is sent with [`Arena::send`](crate::Arena::send).
    SlotBytes(Slot)
}

#[cfg(target_os = "linux")]
bytes! {
    /// A [`Lease`] as bytes.
    LeaseBytes(Lease)
}
