//! The kernel's ublk interface: `include/uapi/linux/ublk_cmd.h` of Linux 6.12. All numbers are in the byte order of the
//! machine.

use rustix::ioctl::opcode;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Commands on `/dev/ublk-control`, as numbers of ioctls with a [`ControlCommand`].
pub(crate) mod control {
    use super::{ControlCommand, opcode};

    const fn read(number: u8) -> u32 {
        opcode::read::<ControlCommand>(b'u', number) as u32
    }

    const fn read_write(number: u8) -> u32 {
        opcode::read_write::<ControlCommand>(b'u', number) as u32
    }

    /// With the queue as its data.
    pub(crate) const GET_QUEUE_AFFINITY: u32 = read(0x01);
    pub(crate) const ADD_DEVICE: u32 = read_write(0x04);
    /// Waits until `/dev/ublkcN` and `/dev/ublkbN` are open nowhere.
    pub(crate) const DELETE_DEVICE: u32 = read_write(0x05);
    /// Waits until all entries of all queues are fetched.
    pub(crate) const START_DEVICE: u32 = read_write(0x06);
    pub(crate) const STOP_DEVICE: u32 = read_write(0x07);
    pub(crate) const SET_PARAMETERS: u32 = read_write(0x08);
    pub(crate) const GET_PARAMETERS: u32 = read(0x09);
    pub(crate) const START_RECOVERY: u32 = read_write(0x10);
    /// Waits as [`START_DEVICE`].
    pub(crate) const END_RECOVERY: u32 = read_write(0x11);
    /// With the path of `/dev/ublkcN` before its data, for devices of all owners.
    pub(crate) const GET_INFO: u32 = read(0x12);
    /// Since Linux 6.5.
    pub(crate) const GET_FEATURES: u32 = read(0x13);
    /// Leaves the number of the device in use until it is open nowhere. Since Linux 6.9, not for unprivileged devices.
    pub(crate) const DELETE_DEVICE_LATER: u32 = read(0x14);
}

/// Commands on `/dev/ublkcN`, as numbers of ioctls with an [`IoCommand`].
pub(crate) mod io {
    use super::{IoCommand, opcode};

    const fn read_write(number: u8) -> u32 {
        opcode::read_write::<IoCommand>(b'u', number) as u32
    }

    /// Gives the kernel an entry, and waits for its first request.
    pub(crate) const FETCH: u32 = read_write(0x20);
    /// Ends a request, and waits for the entry's next one.
    pub(crate) const COMMIT_AND_FETCH: u32 = read_write(0x21);
}

/// Features of a device.
pub(crate) mod feature {
    /// Requests wait while no server is there.
    pub(crate) const RECOVERY: u64 = 1 << 3;
    /// Requests that a server had when it ended go to the next one.
    pub(crate) const RECOVERY_REISSUE: u64 = 1 << 4;
    /// The device of a user without privileges.
    pub(crate) const UNPRIVILEGED: u64 = 1 << 5;
    /// Numbers of commands are those of ioctls.
    pub(crate) const IOCTL_NUMBERS: u64 = 1 << 6;
    /// The server copies data, by `pread` and `pwrite` of `/dev/ublkcN`.
    pub(crate) const USER_COPY: u64 = 1 << 7;
}

/// States of a device.
pub(crate) mod state {
    /// Not started, or stopped.
    pub(crate) const DEAD: u16 = 0;
    pub(crate) const LIVE: u16 = 1;
    /// Its server has ended, and its requests wait for the next one.
    pub(crate) const QUIESCED: u16 = 2;
}

/// Operations of requests, in the low 8 bits of [`IoDescriptor::operation`].
pub(crate) mod operation {
    pub(crate) const MASK: u32 = 0xff;
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 2;
    pub(crate) const DISCARD: u32 = 3;
    pub(crate) const WRITE_ZEROES: u32 = 5;
}

/// Flags of requests, beside the operation.
pub(crate) mod flag {
    /// Durable when it ends.
    pub(crate) const FUA: u32 = 1 << 13;
    /// A zeroing that keeps blocks.
    pub(crate) const KEEP_BLOCKS: u32 = 1 << 15;
}

/// [`BasicParameters::attributes`].
pub(crate) mod attribute {
    pub(crate) const READ_ONLY: u32 = 1 << 0;
    pub(crate) const ROTATIONAL: u32 = 1 << 1;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// Sets of [`Parameters`].
pub(crate) mod parameter {
    pub(crate) const BASIC: u32 = 1 << 0;
    pub(crate) const DISCARD: u32 = 1 << 1;
}

/// The size of a sector in bytes, whatever the block size is.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// The number of a device that the kernel is to choose.
pub(crate) const ANY_DEVICE: u32 = u32::MAX;
/// The queue of a command that concerns none.
pub(crate) const NO_QUEUE: u16 = u16::MAX;
/// The distance between the descriptors of two queues in `/dev/ublkcN`: those of 4096 requests, the most of a queue.
pub(crate) const DESCRIPTORS_BYTES: u64 = 4096 * size_of::<IoDescriptor>() as u64;

/// The position of a request's data in `/dev/ublkcN`.
pub(crate) const fn data_position(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + ((queue as u64) << 41) + ((tag as u64) << 25)
}

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $type:ty),* $(,)? } = $bytes:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $($(#[$note])* pub(crate) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )* };
}

structures! {
    /// The argument of a command on `/dev/ublk-control`.
    ControlCommand {
        device: u32, queue: u16, length: u16, address: u64, data: u64,
        /// Of the path of `/dev/ublkcN`, with which the memory at the address begins.
        path_length: u16,
        padding: u16, reserved: u32,
    } = 32;
    DeviceInfo {
        queues: u16, queue_depth: u16, state: u16, padding: u16, max_io_bytes: u32, device: u32,
        server_pid: i32, padding2: u32, flags: u64,
        /// The kernel keeps these bits for the server.
        server_flags: u64,
        owner_uid: u32, owner_gid: u32, reserved: [u64; 2],
    } = 64;
    /// A request.
    IoDescriptor {
        /// With flags.
        operation: u32,
        sectors: u32, start_sector: u64, address: u64,
    } = 24;
    /// The argument of a command on `/dev/ublkcN`.
    IoCommand {
        queue: u16, tag: u16,
        /// Bytes that were moved, or the negative number of an error.
        result: i32,
        /// Of the data in the server, unless the server copies them.
        address: u64,
    } = 16;
    BasicParameters {
        attributes: u32, logical_block_shift: u8, physical_block_shift: u8, optimal_io_shift: u8,
        min_io_shift: u8, max_sectors: u32, chunk_sectors: u32, device_sectors: u64,
        virtual_boundary_mask: u64,
    } = 32;
    DiscardParameters {
        alignment_bytes: u32, granularity_bytes: u32, max_discard_sectors: u32,
        max_zeroes_sectors: u32, max_segments: u16, reserved: u16,
    } = 20;
    /// The first of the sets of parameters.
    Parameters {
        length: u32,
        /// The sets that there are.
        sets: u32,
        basic: BasicParameters, discard: DiscardParameters,
        /// Of `/dev/ublkcN`: the front of the next set, which the kernel fills in.
        char_major: u32,
    } = 64;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `_IOWR('u', 0x04, struct ublksrv_ctrl_cmd)` and the others are on x86-64 and AArch64.
    #[test]
    fn numbers_of_commands_are_those_of_the_kernel() {
        assert_eq!(control::ADD_DEVICE, 0xc020_7504);
        assert_eq!(control::GET_INFO, 0x8020_7512);
        assert_eq!(control::GET_QUEUE_AFFINITY, 0x8020_7501);
        assert_eq!(control::GET_FEATURES, 0x8020_7513);
        assert_eq!(io::FETCH, 0xc010_7520);
        assert_eq!(io::COMMIT_AND_FETCH, 0xc010_7521);
    }

    #[test]
    fn data_have_their_position_in_32_mib_for_each_request() {
        assert_eq!(data_position(0, 0), 0x8000_0000);
        assert_eq!(data_position(0, 1), 0x8000_0000 + (32 << 20));
        assert_eq!(data_position(3, 65535), 0x8000_0000 + (3 << 41) + (65535 << 25));
    }
}
