#!/bin/busybox sh
# The guest's first process: mounts what a program expects, inserts the kernel's modules, then does
# the steps that stand in /steps and powers off. What a step prints goes to the second serial port,
# between a line that begins it and a line that ends it with its exit code; the first one, the
# console, is for the kernel and for what goes wrong here.
/bin/busybox --install -s /bin
export PATH=/sbin:/bin HOME=/ TMPDIR=/tmp

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
ip link set lo up

stty -F /dev/ttyS1 raw
exec 3>/dev/ttyS1

# insert NAME [PARAMETER=VALUE...]; a kernel that has it built in has no such file.
insert() {
    module=/modules/$1.ko
    shift
    [ ! -e $module ] || insmod $module "$@"
}

for module in configfs libcrc32c xfs loop; do
    insert $module
done

# prepare NAME RAW EXT4 XFS VOLUME: writes a range of the raw device and a file on each file system and
# in a volume, all of it, so that reads find blocks. Reads change no times, and all is on the devices in
# the end: a journal has nothing to write while reads are counted.
prepare() {
    mkdir -p /$1/ext4 /$1/xfs
    mkfs.ext4 -q -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 $3 && mount -o noatime $3 /$1/ext4
    mkfs.xfs -q -f -s size=4096 $4 && mount -o noatime $4 /$1/xfs
    for target in $2 /$1/ext4/file /$1/xfs/file; do
        dd if=/dev/zero of=$target bs=1M count=$size_mib oflag=direct conv=notrunc 2>/dev/null
    done
    uringfs mkfs $5 >/dev/null &&
        dd if=/dev/zero bs=1M count=$size_mib 2>/dev/null | uringfs put - $5:/file >/dev/null
    sync
}

# step NUMBER COMMAND...; nothing to do is a failure, where sh would call it success.
step() {
    number=$1
    shift
    [ $# -gt 0 ] || set -- false
    echo "::begin $number" >&3
    "$@" >/tmp/.out 2>/tmp/.err
    code=$?
    cat /tmp/.out >&3
    [ $code = 0 ] || cat /tmp/.err >&3
    printf '\n::end %s %s\n' "$number" $code >&3
}

. /steps
poweroff -f
