//! The parser against job files, good and bad.

use super::block_split::BlockShare;
use super::distribution::Distribution;
use super::file_service::FileOrder;
use super::options::{BlockRange, Fallocate, SyncWrites, ThinkBlocks, UnifiedReport, Verify};
use super::pattern::Pattern;
use super::{JobSet, KEYS, Options, Parser, SizeOrPercent, UnknownKeys, find_key};
use crate::Error;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

fn lookup(name: &str) -> Option<String> {
    match name {
        "QD" => Some("32".into()),
        "LOOP" => Some("${LOOP}".into()),
        _ => None,
    }
}

fn parse_bytes(bytes: &[u8]) -> Result<JobSet, Error> {
    let mut parser = Parser::new(&lookup, UnknownKeys::Refuse);
    parser.leave_out_iologs();
    parser.bytes(bytes, "job.fio")?;
    parser.finish()
}

fn parse(text: &str) -> JobSet {
    parse_bytes(text.as_bytes()).unwrap()
}

fn one(key: &str) -> Options {
    parse(&format!("[j]\n{key}\n")).jobs.remove(0).options
}

#[test]
fn each_key_is_found_by_all_its_names() {
    let mut names: Vec<&str> = Vec::new();
    for key in KEYS {
        assert!(!key.doc.is_empty());
        for name in std::iter::once(&key.name).chain(key.aliases) {
            assert!(std::ptr::eq(find_key(name).unwrap(), key));
            names.push(name);
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "a name is in the table twice");
}

/// Each key with a check of the option that it sets.
#[test]
fn each_key_sets_its_option() {
    type Holds = fn(&Options) -> bool;
    let table: &[(&str, Holds)] = &[
        ("name=x", |o| o.name.as_deref() == Some("x")),
        ("description=some words", |o| o.description.as_deref() == Some("some words")),
        ("filename=/a:/b", |o| o.filename.as_deref() == Some("/a:/b")),
        ("directory=/d", |o| o.directory.as_deref() == Some("/d")),
        ("filename_format=$jobname.$filenum", |o| {
            o.filename_format.as_deref() == Some("$jobname.$filenum")
        }),
        ("volume=disk.img", |o| o.volume.as_deref() == Some("disk.img")),
        ("rw=randread", |o| o.pattern == Pattern::RandRead),
        ("readwrite=readwrite", |o| o.pattern == Pattern::ReadWrite),
        ("rw=randrw", |o| o.pattern == Pattern::RandReadWrite),
        ("rw=trim", |o| o.pattern == Pattern::Trim && !o.pattern.writes()),
        ("rw=randtrimwrite", |o| o.pattern.random() && o.pattern.writes() && o.pattern.trims()),
        ("rwmixread=70", |o| o.mix_read == 70),
        ("rwmixwrite=70", |o| o.mix_read == 30),
        ("ioengine=libaio", |o| o.ioengine == "libaio"),
        ("direct=1", |o| o.direct),
        ("buffered=0", |o| o.direct),
        ("sync=dsync", |o| o.sync == SyncWrites::Dsync),
        ("sync=1", |o| o.sync == SyncWrites::Sync),
        ("bs=4k,8k", |o| o.block.map(|b| b.max) == [4096, 8192, 8192]),
        ("bs=8k,", |o| o.block.map(|b| b.max) == [8192, 4096, 4096]),
        ("bs=,8k,16k", |o| o.block.map(|b| b.max) == [4096, 8192, 16_384]),
        ("bs=(4*1k)", |o| o.block.map(|b| b.max) == [4096; 3]),
        ("bsrange=1k-4k,2k-8k", |o| {
            let range = |min, max| BlockRange { min, max };
            o.block == [range(1024, 4096), range(2048, 8192), range(2048, 8192)]
        }),
        ("blocksize=16k", |o| o.block == [BlockRange { min: 16384, max: 16384 }; 3]),
        ("bsrange=1k-4k\nbs=8k", |o| o.block == [BlockRange { min: 1024, max: 4096 }; 3]),
        ("bs=8k\nbsrange=,2k-8k\nbs=16k", |o| {
            let range = |min, max| BlockRange { min, max };
            o.block == [range(16_384, 16_384), range(2048, 8192), range(2048, 8192)]
        }),
        ("bsrange=512-64k", |o| o.block[1] == BlockRange { min: 512, max: 65536 }),
        ("bs=1k\nbssplit=4k/40:8k/60", |o| {
            let share = |bytes, percent| BlockShare { bytes, percent };
            let range = BlockRange { min: 4096, max: 8192 };
            o.block == [range; 3] && o.block_split[1] == [share(4096, 40), share(8192, 60)]
        }),
        ("bs=1k\nbssplit=,4k/50:8k/50", |o| {
            o.block[0].max == 1024 && o.block[1].max == 8192 && o.block_split[0].is_empty()
        }),
        ("iodepth=${QD}", |o| o.depth == 32),
        ("rw=randwrite\nbs=512\nba=4k,8k", |o| {
            o.block_align == [4096, 8192, 8192] && !o.random_map
        }),
        ("bs=4k\nblockalign=4k", |o| o.block_align == [4096; 3] && o.random_map),
        ("iodepth=64\niodepth_batch=32", |o| o.batch_submit == 32),
        ("iodepth=64\niodepth_batch_submit=128", |o| o.batch_submit == 64),
        ("iodepth=64\niodepth_batch_complete_min=16", |o| o.complete_min == 16),
        ("iodepth=64\niodepth_batch_complete_max=16", |o| o.complete_max == 16),
        ("iodepth_batch_complete_max=2\niodepth=64\niodepth_batch_complete_min=16", |o| {
            o.complete_max == 16
        }),
        ("iodepth=64\niodepth_batch_complete_max=0", |o| o.complete_max == 64),
        ("iodepth=64\niodepth_low=16", |o| o.depth_low == 16),
        ("size=1g", |o| o.size == Some(SizeOrPercent::Bytes(1 << 30))),
        ("size=20%", |o| o.size == Some(SizeOrPercent::Percent(20))),
        ("filesize=1m", |o| o.file_size == Some(1 << 20)),
        ("offset=1m", |o| o.offset == SizeOrPercent::Bytes(1 << 20)),
        ("offset_align=8k", |o| o.offset_unit() == 8192),
        ("bs=16k,8k\noffset_align=0", |o| o.offset_unit() == 8192),
        ("offset_increment=1m", |o| o.offset_increment == SizeOrPercent::Bytes(1 << 20)),
        ("file_service_type=random:8", |o| {
            o.file_service.ios == 8
                && o.file_service.order == FileOrder::Random(Distribution::Uniform)
        }),
        ("io_size=2m", |o| o.io_size == Some(SizeOrPercent::Bytes(2 << 20))),
        ("number_ios=100", |o| o.number_ios == 100),
        ("nrfiles=3", |o| o.files == 3),
        ("loops=4", |o| o.loops == 4),
        ("numjobs=5", |o| o.jobs == 5),
        ("thread", |o| o.jobs == 1),
        ("group_reporting", |o| o.group_reporting),
        ("stonewall", |o| o.stonewall),
        ("wait_for_previous", |o| o.stonewall),
        ("new_group", |o| o.new_group),
        ("exitall", |o| o.exit_all),
        ("startdelay=20", |o| o.start_delay == Duration::from_secs(20)),
        ("ramp_time=5", |o| o.ramp_time == Duration::from_secs(5)),
        ("runtime=10s", |o| o.runtime == Some(Duration::from_secs(10))),
        ("timeout=1m", |o| o.runtime == Some(Duration::from_secs(60))),
        ("runtime=1\ntime_based=1", |o| o.time_based),
        ("thinktime=30", |o| o.think_time == Duration::from_micros(30)),
        ("thinktime_blocks=3", |o| o.think_blocks == Some(3)),
        ("thinktime=1", |o| o.think_type == ThinkBlocks::Completed),
        ("thinktime_blocks_type=complete", |o| o.think_type == ThinkBlocks::Completed),
        ("thinktime_blocks_type=issue", |o| o.think_type == ThinkBlocks::Issued),
        ("thinktime_spin=30", |o| o.think_spin == Duration::from_micros(30)),
        ("thinktime_iotime=2", |o| o.think_io_time == Duration::from_secs(2)),
        ("rate=1m,500k", |o| o.rate == [1 << 20, 500 << 10, 500 << 10]),
        ("rate=0", |o| o.rate == [0; 3]),
        ("rate=,500k", |o| o.rate == [0, 500 << 10, 500 << 10]),
        ("rate_iops=1000", |o| o.rate_iops == [1000; 3]),
        ("rate=1m,0\nrate_iops=0,100", |o| {
            o.rate == [1 << 20, 0, 0] && o.rate_iops == [0, 100, 100]
        }),
        ("rate_iops=1k,", |o| o.rate_iops == [1024, 0, 0]),
        ("rate_process=poisson", |o| o.poisson),
        ("rate_process=linear", |o| !o.poisson),
        ("cpus_allowed=0-1", |o| o.cpus == [0, 1]),
        ("cpus_allowed_policy=split", |o| o.split_cpus),
        ("cpus_allowed_policy=shared", |o| !o.split_cpus),
        ("norandommap", |o| !o.random_map),
        ("randrepeat=0", |o| !o.repeatable),
        ("randseed=89", |o| o.seed == Some(89)),
        ("randseed=9007199254740993", |o| o.seed == Some((1 << 53) + 1)),
        ("randseed=18446744073709551615", |o| o.seed == Some(u64::MAX)),
        ("randseed=0xfffffffffffffffe", |o| o.seed == Some(u64::MAX - 1)),
        ("random_distribution=random", |o| o.distribution == Distribution::Uniform),
        ("random_distribution=zipf:1.2", |o| o.distribution == Distribution::Zipf(1.2)),
        ("random_distribution=pareto:0.3", |o| o.distribution == Distribution::Pareto(0.3)),
        ("rw=randrw\nrandom_distribution=zoned:60/10:40/90,100/100", |o| {
            o.distribution == Distribution::Zoned && o.zones.each_ref().map(Vec::len) == [2, 1, 1]
        }),
        ("rw=randrw\npercentage_random=70,100", |o| {
            o.random_percentage == [70, 100, 100] && !o.random_map
        }),
        ("rw=randwrite\npercentage_random=70,100", |o| o.random_map),
        ("percentage_random=50", |o| o.random_percentage == [50; 3] && o.random_map),
        ("read_iolog=x", |o| o.iolog.as_deref() == Some("x")),
        ("file_append=1", |o| o.append),
        ("iomem_align=4k", |o| o.depth == 1),
        ("verify=crc32c\nrw=write\nverify_only", |o| o.verify_only && !o.modifies()),
        ("verify=crc32c\nverify_only", |o| !o.verify_only),
        ("verify_dump=1", |o| !o.verify_fatal),
        ("verify_async=2", |o| o.verify.is_none()),
        ("sync_file_range=wait_before,write:8", |o| {
            (o.sync_range.flags, o.sync_range.every) == (3, 8)
        }),
        ("sync_file_range=write", |o| o.sync_range.every == 1),
        ("prio=3", |o| o.io_priority() == Some((2, 3))),
        ("prio=0\nprioclass=3", |o| o.io_priority() == Some((3, 0))),
        ("prioclass=0", |o| o.io_priority().is_none()),
        ("write_iolog=x", |o| o.iolog_copy.as_deref() == Some("x")),
        ("replay_no_stall=1", |o| o.replay_options.no_stall),
        ("replay_time_scale=50", |o| o.replay_options.due_ns(10) == 20_000),
        ("replay_scale=2", |o| o.replay_options.offset(10) == 5),
        ("replay_align=4k", |o| o.replay_options.offset(10_000) == 8192),
        ("replay_redirect=/x", |o| o.replay_options.redirect.as_deref() == Some("/x")),
        ("replay_skip=write,sync", |o| {
            let skip = o.replay_options.skip;
            skip.writes && skip.syncs && !skip.reads && !skip.trims
        }),
        ("random_generator=tausworthe64", |o| o.random_map),
        ("softrandommap", |o| o.random_map),
        ("zero_buffers", |o| o.zero_buffers),
        ("refill_buffers", |o| o.refill_buffers),
        ("buffer_compress_percentage=60", |o| o.compress_percentage == Some(60)),
        ("buffer_compress_chunk=4k", |o| o.compress_chunk == 4096),
        ("scramble_buffers=1", |o| !o.refill_buffers),
        ("buffer_pattern=0xdead", |o| o.buffer_pattern == [0xde, 0xad]),
        ("mem=malloc", |o| o.buffer_pattern.is_empty()),
        ("verify=crc32c", |o| o.verify == Some(Verify::Crc32c) && o.do_verify && !o.verify_fatal),
        ("verify=crc32c-intel", |o| o.verify == Some(Verify::Crc32c)),
        ("verify=md5", |o| o.verify == Some(Verify::Crc32c)),
        ("verify_pattern=0xff\nverify=meta", |o| o.verify == Some(Verify::Crc32c)),
        ("verify_pattern=0xff\nverify=0", |o| o.verify.is_none() && o.verify_pattern == [255]),
        ("verify_pattern=0xff\nverify=crc32c", |o| o.verify == Some(Verify::Crc32c)),
        ("verify=pattern\nverify_pattern=0xdead", |o| o.verify_pattern == [0xde, 0xad]),
        ("verify_pattern=0xff", |o| o.verify == Some(Verify::Pattern)),
        ("do_verify=0", |o| !o.do_verify),
        ("verify_fatal=1", |o| o.verify_fatal),
        ("verify=crc32c\nverify_backlog=16", |o| o.verify_backlog == 16),
        ("verify_backlog=16", |o| o.verify_backlog == 0),
        ("fsync=8", |o| o.fsync == 8),
        ("fdatasync=8", |o| o.fdatasync == 8),
        ("end_fsync=1", |o| o.end_fsync),
        ("fsync_on_close=1", |o| o.close_fsync && !o.end_fsync),
        ("fallocate=none", |o| o.fallocate == Fallocate::None),
        ("fallocate=1", |o| o.fallocate == Fallocate::Posix),
        ("fallocate=keep", |o| o.fallocate == Fallocate::Keep),
        ("fallocate=truncate", |o| o.fallocate == Fallocate::Truncate),
        ("fallocate=native", |o| o.fallocate == Fallocate::Native),
        ("overwrite=1", |o| o.overwrite),
        ("create_serialize=0", |o| !o.overwrite),
        ("create_fsync=0", |o| !o.end_fsync),
        ("create_on_open=1", |o| !o.overwrite),
        ("openfiles=1", |o| o.files == 1),
        ("fadvise_hint=0", |o| o.invalidate),
        ("invalidate=0", |o| !o.invalidate),
        ("pre_read=1", |o| o.pre_read && !o.invalidate),
        ("unlink=1", |o| o.unlink),
        ("registerfiles", |o| o.register_files),
        ("fixedbufs=1", |o| o.fixed_buffers),
        ("direct=1\nhipri", |o| o.polled),
        ("sqthread_poll=1", |o| o.sq_thread_poll),
        ("force_async=4", |o| o.force_async == 4),
        ("cmd_type=nvme", |o| o.ioengine == "psync"),
        ("batch=on", |o| o.batch),
        ("batch=0", |o| !o.batch),
        ("waits_apart", |o| o.waits_apart),
        ("gtod_reduce=1", |o| !o.measure().latency() && !o.measure().bandwidth),
        ("clocksource=cpu", |o| o.measure().latency()),
        ("disable_slat=1", |o| !o.measure().slat && o.measure().clat),
        ("disable_clat=1", |o| !o.measure().clat && o.measure().lat),
        ("disable_lat=1", |o| !o.measure().lat && o.measure().slat),
        ("disable_bw=1", |o| !o.measure().bandwidth),
        ("clat_percentiles=0", |o| !o.clat_percentiles),
        ("lat_percentiles=1", |o| o.lat_percentiles && o.clat_percentiles),
        ("slat_percentiles=1", |o| o.slat_percentiles && !o.lat_percentiles),
        ("max_latency=20ms,5", |o| {
            let five = Duration::from_micros(5);
            o.max_latency == [Duration::from_millis(20), five, five]
        }),
        ("latency_target=5ms", |o| o.latency_target == Duration::from_millis(5)),
        ("latency_window=500", |o| o.latency_window == Duration::from_micros(500)),
        ("latency_percentile=99.9", |o| o.latency_percentile == 99.9),
        ("latency_run=1", |o| o.latency_run),
        ("ss_dur=5\nsteadystate=iops:0.3%", |o| o.steady.is_some_and(|steady| steady.limit == 0.3)),
        ("steadystate=iops:0.3%", |o| o.steady.is_none()),
        ("steadystate_duration=5", |o| o.steady_duration == Duration::from_secs(5)),
        ("ss_ramp=2", |o| o.steady_ramp == Duration::from_secs(2)),
        ("unified_rw_reporting=1", |o| o.unified == UnifiedReport::Mixed),
        ("unified_rw_reporting=both", |o| o.unified == UnifiedReport::Both),
        ("percentile_list=99.9:50", |o| *o.percentiles == [50.0, 99.9]),
        ("write_bw_log", |o| o.bandwidth_log.as_deref() == Some("")),
        ("write_iops_log=x", |o| o.iops_log.as_deref() == Some("x")),
        ("write_lat_log=x", |o| o.latency_log.as_deref() == Some("x") && o.bandwidth_log.is_none()),
        ("log_avg_msec=1000", |o| o.log_window == Duration::from_secs(1)),
        ("log_max_value=1", |o| o.log_maximum),
        ("log_offset=1", |o| o.log_offset),
        ("disk_util=0", |o| !o.disk_util),
        ("direct.simple_read=off", |o| o.settings == [("direct.simple_read".into(), "off".into())]),
    ];
    for (line, holds) in table {
        assert!(holds(&one(line)), "{line}");
    }
    for key in KEYS {
        let names = |line: &&(&str, Holds)| {
            let last = line.0.lines().last().unwrap_or("");
            find_key(last.split('=').next().unwrap_or(""))
                .is_some_and(|found| found.name == key.name)
        };
        assert!(table.iter().any(|line| names(&line)), "no line tests {}", key.name);
    }
}

#[test]
fn sections_inherit_the_globals_before_them() {
    let set = parse("[global]\nbs=8k\niodepth=2\n[a]\niodepth=4\n[global]\nbs=16k\n[b]\n");
    let values: Vec<_> = set
        .jobs
        .iter()
        .map(|j| (j.name.as_str(), j.options.block[0].max, j.options.depth))
        .collect();
    assert_eq!(values, [("a", 8192, 4), ("b", 16384, 2)]);
    let set = parse("[global]\nname=all\nbs=8k\n[a]\n");
    assert_eq!((set.jobs[0].name.as_str(), set.jobs[0].options.block[0].max), ("a", 8192));
}

#[test]
fn bare_keys_comments_and_blanks_are_read_as_fio_reads_them() {
    let set = parse(
        "# c\n; c\n\n[one job]  ; named\n  rw = randwrite # order\nstonewall\n\r\n[two]\nname=other\n",
    );
    assert_eq!(set.jobs[0].name, "one job");
    assert_eq!(set.jobs[0].options.pattern, Pattern::RandWrite);
    assert!(set.jobs[0].options.stonewall);
    assert_eq!(set.jobs[1].name, "other");
}

#[test]
fn the_last_value_of_a_repeated_key_wins() {
    let set = parse("[j]\nruntime=120\nblocksize=4k\nruntime=30\nbs=8k\n");
    assert_eq!(set.jobs[0].options.runtime, Some(Duration::from_secs(30)));
    assert_eq!(set.jobs[0].options.block[0].max, 8192);
    assert_eq!(set.jobs[0].own_keys.iter().filter(|(key, _)| key == "runtime").count(), 1);
}

#[test]
fn keys_on_the_command_line_make_jobs_as_with_fio() {
    let mut parser = Parser::new(&lookup, UnknownKeys::Refuse);
    for (key, value) in [("bs", "8k"), ("name", "a"), ("rw", "write"), ("name", "b"), ("bs", "1m")]
    {
        parser.argument(key, Some(value)).unwrap();
    }
    parser.bytes(b"[c]\n", "x").unwrap();
    let jobs = parser.finish().unwrap().jobs;
    let values: Vec<_> =
        jobs.iter().map(|j| (j.name.as_str(), j.options.pattern, j.options.block[0].max)).collect();
    let expected =
        [("a", Pattern::Write, 8192), ("b", Pattern::Read, 1 << 20), ("c", Pattern::Read, 8192)];
    assert_eq!(values, expected);
}

#[test]
fn errors_name_file_and_line() {
    let long = format!("[j]\n{}\n", "x".repeat(1 << 20));
    let table: &[(&[u8], &str)] = &[
        (b"[j]\niodpeth=3\n", "job.fio:2: unknown key `iodpeth`; the nearest is `iodepth`"),
        (b"[j]\nbs=4q\n", "job.fio:2: bs: `4q` is not a number with a known suffix"),
        (b"[j]\nbs=0\n", "job.fio:2: bs: 0 is out of range"),
        (b"[j]\nbs\n", "job.fio:2: bs: needs a value"),
        (b"[j]\nrw=sideways\n", "job.fio:2: rw: `sideways` is not one of read, write"),
        (b"[j]\ndirect=yes\n", "job.fio:2: direct: `yes` is neither 0 nor 1"),
        (b"[j]\nrwmixread=101\n", "job.fio:2: rwmixread: 101 is out of range: 0 to 100"),
        (b"[j]\n\niodepth=${LOOP}\n", "job.fio:3: iodepth: variable ${LOOP} refers to itself"),
        (b"[j]\niodepth=${NOPE}\n", "${NOPE} is not set"),
        (b"[j\nbs=4k\n", "job.fio:1: section without a closing `]`"),
        (b"[]\n", "job.fio:1: section without a name"),
        (b"bs=4k\n", "job.fio:1: `bs` is before the first [section]"),
        (long.as_bytes(), "job.fio:2: line of 1048576 bytes; at most 65536"),
        (b"[j]\nbs=\0\n", "job.fio:2: line has a NUL byte"),
        (b"[j]\nbs=4k\x11\n", "job.fio:2: line has the control character"),
        (b"[j]\nbs=4\tk\n", "job.fio:2: line has the control character"),
        (b"[j]\nname=\xff\n", "job.fio:2: not UTF-8 from byte 6 on"),
        (b"[j]\ntime_based\n", "job.fio:1: job `j`: time_based needs a runtime"),
        (b"[j]\nbatch=on\nbs=4k,8k\nrw=rw\n", "job `j`: batch needs blocks of one size"),
        (b"[j]\nbatch=on\nbsrange=4k-8k\n", "job `j`: batch needs blocks of one size"),
        (b"[j]\nbatch=on\nrw=trim\n", "job `j`: batch is for reads and writes: no trims"),
        (b"[j]\nbatch=on\nrw=write\nsync=dsync\n", "job `j`: batch has no durable writes"),
        (b"[j]\nbatch=on\nread_iolog=x\n", "batch and read_iolog exclude each other"),
        (b"[j]\nbatch=yes\n", "batch"),
        (b"[j]\nhipri\n", "job.fio:1: job `j`: hipri needs direct=1"),
        (b"[j]\nrw=write:4k\n", "job.fio:2: rw: `write:4k` is not one of read, write"),
        (b"[j]\nbs=4*1024\n", "job.fio:2: bs: `4*1024` is not a number with a known suffix"),
        (b"[j]\nverify=md6\n", "job.fio:2: verify: `md6` is not one of 0, crc32c"),
        (
            b"[j]\nverify=md5\nba=6k\n",
            "verify needs a blockalign that is a multiple of the smallest",
        ),
        (
            b"[j]\nnumber_ios=9\nbsrange=4k-8k\n",
            "number_ios needs blocks of one size; give io_size",
        ),
        (b"[j]\nnumber_ios=9\ntime_based\nruntime=1\n", "number_ios and time_based exclude each"),
        (b"[j]\nverify=pattern\n", "verify=pattern needs a verify_pattern"),
        (b"[j]\nverify=crc32c\nbs=16\n", "verify=crc32c needs blocks of 32 bytes; one is 16"),
        (b"[j]\nverify_pattern='file'\n", "verify_pattern: `'file'` is not a pattern"),
        (b"[j]\nrandom_distribution=zipf:1\n", "zipf needs a theta above 0"),
        (b"[j]\nrandom_distribution=normal:5\n", "`normal:5` is not one of random, zipf:THETA"),
        (b"[j]\nbuffer_compress_percentage=101\n", "101 is out of range: 0 to 100"),
        (b"[j]\nrate=1m,0\nrate_iops=5,100\n", "rate and rate_iops exclude each other"),
        (b"[j]\nfilesize=1m-2m\n", "filesize: `1m-2m` is not a number"),
        (b"[j]\nbssplit=4k/60:8k/60\n", "bssplit: the percentages of `4k/60:8k/60` add up to 120"),
        (b"[j]\nbssplit=2g/100\n", "bssplit: 2147483648 is out of range"),
        (b"[j]\npercentage_random=101\n", "percentage_random: 101 is out of range: 0 to 100"),
        (b"[j]\nfile_service_type=gauss\n", "file_service_type: `gauss` is not one of roundrobin"),
        (b"[j]\nrandom_distribution=zoned:60/10\n", "add up to 60, not 100"),
        (b"[j]\nrandom_distribution=zoned:,100/50\n", "has no zones for a direction"),
        (b"[j]\nmem=cudamalloc\n", "mem: `cudamalloc` is not one of malloc, mmap"),
        (b"[j]\niomem_align=8k\n", "iomem_align: 8192 is out of range: 0 to 4096"),
        (b"[j]\nrw=write\nverify_only=1\n", "verify_only needs verify"),
        (b"[j]\nsync_file_range=read:4\n", "`read` is not one of wait_before, write"),
        (b"[j]\nmax_latency=1\ngtod_reduce=1\n", "max_latency needs total latencies"),
        (b"[j]\nlatency_target=1ms\ndisable_lat=1\n", "latency_target needs total latencies"),
        (b"[j]\nlatency_percentile=101\n", "latency_percentile: `101` is not a percentile"),
        (b"[j]\nwrite_bw_log\ngtod_reduce\n", "logs need times of I/Os: no gtod_reduce"),
        (b"[j]\nwrite_bw_log=\n", "write_bw_log: needs a value"),
        (b"[j]\nreplay_align=5k\n", "replay_align: 5120 is not a power of two"),
        (b"[j]\nreplay_skip=reads\n", "replay_skip: `reads` is not one of read, write"),
        (b"[j]\nread_iolog=x\nverify=crc32c\n", "verify and read_iolog exclude each other"),
        (b"[j]\nwrite_iolog=x\nnumjobs=2\n", "write_iolog names one file"),
        (b"[j]\nzonemode=zbd\n", "job.fio:2: fio's key `zonemode` is not supported: zones"),
        (b"[j]\nsize=1k\n", "size=1024 is less than one block of 4096"),
        (b"[j]\nbs=1g\niodepth=1000\n", "GiB of buffers"),
        (b"[global]\nbs=4k\n", "no job"),
        (b"", "no job"),
    ];
    for (text, expected) in table {
        let error = parse_bytes(text).unwrap_err();
        let line = error.to_string();
        assert!(line.contains(expected), "{expected}\n{line}");
        assert!(!line.contains('\n'));
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn all_keys_that_cannot_be_used_are_one_error() {
    let mut parser = Parser::new(&lookup, UnknownKeys::Refuse);
    parser.argument("zonde", Some("1")).unwrap();
    parser.bytes(b"[j]\niodpeth=3\nrw=read\nbs=4q\n", "one.fio").unwrap();
    // The unknown key may be the missing one.
    parser.bytes(b"[k]\ntime_based\nrunntime=9\nnumjobs=0\n", "two.fio").unwrap();
    let error = parser.finish().unwrap_err();
    assert_eq!(error.to_string(), "5 keys of the jobs cannot be used");
    assert_eq!(error.exit_code(), 2);
    let begins = [
        "command line: unknown key `zonde`",
        "one.fio:2: unknown key `iodpeth`; the nearest is `iodepth`",
        "one.fio:4: bs: `4q` is not a number",
        "two.fio:3: unknown key `runntime`; the nearest is `runtime`",
        "two.fio:4: numjobs: 0 is out of range",
    ];
    assert_eq!(error.details().len(), begins.len(), "{:?}", error.details());
    for (line, begin) in error.details().iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}");
    }
}

#[test]
fn a_bounded_number_of_problems_is_shown() {
    let error = parse_bytes(format!("[j]\n{}", "nokey\n".repeat(1000)).as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "1000 keys of the jobs cannot be used");
    assert_eq!(error.details().len(), 51);
    assert_eq!(error.details()[50], "and 950 more");
}

#[test]
fn only_the_named_sections_are_read() {
    let text = b"[global]\nbs=8k\n[a]\nbad key\n[b]\nrw=write\n[global]\nbs=16k\n[c]\n[b]\n[d]\n";
    let read = |names: &[&str]| {
        let mut parser = Parser::new(&lookup, UnknownKeys::Refuse);
        names.iter().for_each(|name| parser.only_section(name));
        parser.argument("name", Some("typed"))?;
        parser.bytes(text, "x.fio")?;
        parser.finish()
    };
    let jobs = read(&["b", "d"]).unwrap().jobs;
    let found: Vec<_> =
        jobs.iter().map(|job| (job.name.as_str(), job.options.block[0].max >> 10)).collect();
    assert_eq!(found, [("typed", 4), ("b", 8), ("b", 16), ("d", 16)]);
    let error = read(&["b", "cc"]).unwrap_err().to_string();
    assert_eq!(error, "--section cc: no job file has it; the nearest is `c`");
    assert!(read(&[]).unwrap_err().to_string().contains("bad key"));
}

#[test]
fn unknown_keys_can_be_ignored_with_a_warning() {
    let mut parser = Parser::new(&lookup, UnknownKeys::Ignore);
    parser.bytes(b"[j]\niodpeth=3\n", "job.fio").unwrap();
    let set = parser.finish().unwrap();
    assert_eq!(set.warnings, ["job.fio:2: unknown key `iodpeth`; the nearest is `iodepth`"]);
}

#[test]
fn traces_decide_directions_and_block_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("a"), "fio version 3 iolog\n0 /x read 0 512\n9 /y read 0 8192\n").unwrap();
    std::fs::write(path("b"), "fio version 2 iolog\n/x trim 0 65536\n").unwrap();
    let read = |keys: &str| {
        let mut parser = Parser::new(&lookup, UnknownKeys::Refuse);
        parser.bytes(format!("[j]\n{keys}\n").as_bytes(), "job.fio")?;
        parser.finish()
    };
    let names = format!("{}:{}", path("a"), path("b"));
    let others =
        "size=1\nnumber_ios=1\nfile_append=1\nba=100\nrandom_distribution=zoned:90/10:10/90";
    let set = read(&format!("read_iolog={names}\nnumjobs=3\n{others}\n[k]\nread_iolog={names}"));
    let set = set.unwrap();
    let options = &set.jobs[0].options;
    assert_eq!(options.pattern, Pattern::Replay { reads: true, writes: false, trims: true });
    assert_eq!(options.block[0], BlockRange { min: 512, max: 8192 });
    assert_eq!((options.largest_block(), options.buffer_bytes()), (65_536, 8192));
    let files = [0, 1, 2].map(|thread| options.replay_of(thread).unwrap().files.len());
    assert_eq!(files, [2, 1, 2], "by the threads in turn");
    assert_eq!((options.number_ios, options.append, options.block_align), (0, false, [0; 3]));
    assert_eq!(options.distribution, Distribution::Uniform);
    let [first, second] = [0, 1].map(|job| &set.jobs[job].options.replays[0]);
    assert!(Arc::ptr_eq(first, second), "each trace is read once");
    std::fs::write(path("c"), "0 /x read 0 512\n").unwrap();
    let error = read(&format!("read_iolog={}", path("c"))).unwrap_err().to_string();
    assert!(
        error.starts_with("job.fio:1: job `j`: ") && error.contains("does not begin"),
        "{error}"
    );
    let error = read(&format!("read_iolog={}", path("none"))).unwrap_err().to_string();
    assert!(error.contains("none: No such file"), "{error}");
}

#[test]
fn a_file_includes_others_but_not_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("main.fio"), "[global]\ninclude common.inc\n[j]\n").unwrap();
    std::fs::write(path("common.inc"), "bs=32k\n").unwrap();
    std::fs::write(path("a.fio"), "[j]\ninclude b.fio\n").unwrap();
    std::fs::write(path("b.fio"), "include a.fio\n").unwrap();
    std::fs::write(path("lost.fio"), "[j]\ninclude nowhere\n").unwrap();
    let read = |name: &str| {
        let mut parser = Parser::new(&lookup, UnknownKeys::Refuse);
        parser.file(&path(name))?;
        parser.finish()
    };
    assert_eq!(read("main.fio").unwrap().jobs[0].options.block[0].max, 32 << 10);
    let error = read("a.fio").unwrap_err().to_string();
    assert!(error.contains("b.fio:1: ") && error.contains("includes itself"), "{error}");
    let error = read("lost.fio").unwrap_err().to_string();
    assert!(error.contains("lost.fio:2: "), "{error}");
}

#[test]
fn a_megabyte_of_jobs_is_read_to_its_last_job() {
    let one = "[job]\nrw=randread\nbs=4k\nsize=1g\niodepth=32\nruntime=10s\n";
    let count = (1 << 20) / one.len();
    let set = parse(&format!("{}[last]\niodepth=7\n", one.repeat(count)));
    assert_eq!(set.jobs.len(), count + 1);
    assert!(set.jobs[..count].iter().all(|job| job.options.depth == 32));
    assert_eq!(set.jobs[count].options.depth, 7);
}

proptest! {
    #[test]
    fn random_bytes_do_not_make_the_parser_panic(bytes: Vec<u8>) {
        let _ = parse_bytes(&bytes);
    }

    #[test]
    fn near_valid_text_does_not_make_the_parser_panic(
        lines in prop::collection::vec(
            r"(\[[a-z ]{0,6}\]?|[a-z_]{1,10}=?|(bs|size|rw|rate|runtime|bsrange|cpus_allowed|percentile_list|io_size|random_distribution|verify_pattern|bssplit|percentage_random|file_service_type|max_latency|buffer_pattern|offset_increment)=[-0-9a-z.%,:$\{\}\(\)*/+]{0,12})",
            0..12,
        )
    ) {
        let _ = parse_bytes(lines.join("\n").as_bytes());
    }
}

#[test]
fn replacements_win_over_the_job_file_and_before_limits_apply() {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.replace("iodepth", "32");
    parser.replace("rw", "randread");
    let text = b"[global]\niodepth=1\n[a]\nrw=write\n[b]\niodepth=4\niodepth_batch_submit=16\n";
    parser.bytes(text, "x.fio").unwrap();
    let set = parser.finish().unwrap();
    for job in &set.jobs {
        assert_eq!((job.options.depth, job.options.pattern), (32, Pattern::RandRead));
        let depths = job.own_keys.iter().filter(|(key, _)| key == "iodepth");
        assert_eq!(depths.map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["32"]);
    }
    assert_eq!(set.jobs[1].options.batch_submit, 16);

    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.replace("iodepth", "many");
    parser.bytes(b"[a]\n[b]\n", "x.fio").unwrap();
    let error = parser.finish().unwrap_err();
    let line = error.to_string();
    assert!(line.contains("command line") && line.contains("iodepth"), "{line}");
    assert!(error.details().is_empty(), "one problem of both jobs: {:?}", error.details());
}

#[test]
fn a_replaced_block_size_beside_bssplit_is_refused() {
    let jobs = |key: &str| {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.replace(key, "64k");
        parser.bytes(b"[j]\nbssplit=4k/60:8k/40\n", "x.fio")?;
        parser.finish()
    };
    for key in ["bs", "blocksize", "bsrange"] {
        let error = jobs(key).unwrap_err().to_string();
        assert!(error.contains("changes nothing in job `j`, which has bssplit="), "{error}");
    }
    assert_eq!(jobs("size").unwrap().jobs.len(), 1);
}

#[test]
fn a_replaced_block_size_beside_bsrange_is_refused() {
    let jobs = |keys: &str, key: &str, value: &str| {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.replace(key, value);
        parser.bytes(format!("[global]\n{keys}\n[j]\n").as_bytes(), "x.fio")?;
        parser.finish()
    };
    let error = jobs("bsrange=4k-8k", "bs", "64k").unwrap_err().to_string();
    assert!(error.contains("changes nothing in job `j`, which has bsrange="), "{error}");
    let whole = BlockRange { min: 64 << 10, max: 64 << 10 };
    let replaced = jobs("bsrange=4k-8k", "bsrange", "64k-64k").unwrap();
    assert_eq!(replaced.jobs[0].options.block, [whole; 3]);
    // It changes the reads.
    let writes = jobs("bsrange=,4k-8k", "bs", "64k").unwrap().jobs[0].options.block;
    assert_eq!((writes[0], writes[1].max), (whole, 8 << 10));
}
