//! The tables that the mechanisms' authors published for the kernel, each with its source. They are shown beside what an experiment
//! measures: on other hardware, with other software, so only the gains are comparable.
//!
//! Only figures that stand in a source are here. [`REMARKS`] says what was found where there is no table.

/// A table, as its author published it.
#[derive(Debug, Clone, Copy)]
pub struct PublishedTable {
    /// The experiment of the same mechanism.
    pub experiment: &'static str,
    /// The subject of the message.
    pub title: &'static str,
    /// Its author.
    pub author: &'static str,
    /// Its date: year, month, day.
    pub date: &'static str,
    /// Its address.
    pub source: &'static str,
    /// The hardware, as far as the author says.
    pub hardware: &'static str,
    /// The I/O.
    pub workload: &'static str,
    /// The rows.
    pub rows: &'static [PublishedRow],
    /// Other rates of the same machine, in I/Os a second.
    pub beside: &'static [(&'static str, f64)],
}

/// A row of a table: without the mechanism and with it.
#[derive(Debug, Clone, Copy)]
pub struct PublishedRow {
    /// Its label.
    pub label: &'static str,
    /// The case of the experiment that is most like it.
    pub case: Option<&'static str>,
    /// I/Os a second without the mechanism.
    pub off: f64,
    /// I/Os a second with it.
    pub on: f64,
}

impl PublishedRow {
    /// `on` by `off`.
    pub fn ratio(&self) -> f64 {
        self.on / self.off
    }
}

const fn row(label: &'static str, case: &'static str, off: f64, on: f64) -> PublishedRow {
    PublishedRow { label, case: Some(case), off, on }
}

/// A row whose I/O no case has.
const fn other(label: &'static str, off: f64, on: f64) -> PublishedRow {
    PublishedRow { label, case: None, off, on }
}

/// All tables.
pub const TABLES: &[PublishedTable] = &[
    PublishedTable {
        experiment: "simple-read",
        title: "[PATCH v6 0/3] iomap: add simple dio path for small direct I/O",
        author: "Fengnan Chang",
        date: "2026-06-30",
        source: "https://lkml.iu.edu/hypermail/linux/kernel/2606.3/12998.html",
        hardware: "one core, a Gen5 NVMe device",
        workload: "4 KiB random reads of a file on ext4, polled, registered: t/io_uring -p1 -d512 -b4096 -s32 -c32 -F1 -B1 -R1 -X1 -n1 -P1",
        rows: &[row("depth 512", "depth 512", 1.92e6, 2.19e6)],
        beside: &[("raw device", 3.2e6)],
    },
    PublishedTable {
        experiment: "buffered-read",
        title: "[PATCHSET v4 0/12] Add support for async buffered reads",
        author: "Jens Axboe",
        date: "2020-05-24",
        source: "https://lore.kernel.org/io-uring/20200524192206.4093-1-axboe@kernel.dk/",
        hardware: "a virtual NVMe device in QEMU, which reads at most 65 k/s",
        workload: "4 KiB random buffered reads of a file on ext4, fio's io_uring",
        rows: &[
            row("depth 1", "depth 1", 8_294.0, 9_046.0),
            row("depth 2", "depth 2", 18.9e3, 19.8e3),
            row("depth 4", "depth 4", 28.5e3, 39.2e3),
            row("depth 8", "depth 8", 31.4e3, 64.4e3),
            row("depth 16", "depth 16", 37.8e3, 65.7e3),
        ],
        beside: &[],
    },
    PublishedTable {
        experiment: "parallel-write",
        title: "[PATCH 0/2] fuse: fix and optimize parallel writes on passthrough mounts",
        author: "Russ Fellows",
        date: "2026-05-28",
        source: "https://lkml.iu.edu/2605.3/09178.html",
        hardware: "AMD EPYC 9B45, 16 threads, null_blk in memory",
        workload: "4 KiB random direct writes of one file on a FUSE passthrough mount over XFS, depth 64 each",
        rows: &[
            other("1 thread, depth 64", 470e3, 470e3),
            row("2 threads, depth 64", "2 threads, depth 64", 650e3, 930e3),
            other("4 threads, depth 64", 640e3, 1.53e6),
            row("8 threads, depth 64", "8 threads, depth 64", 635e3, 1.707e6),
        ],
        beside: &[("XFS itself, 8 threads", 1.702e6)],
    },
    PublishedTable {
        experiment: "parallel-write",
        title: "[RFC PATCH v2] ext4: dio take shared inode lock when overwriting preallocated blocks",
        author: "Zhang Yi",
        date: "2022-12-26",
        source: "https://lore.kernel.org/linux-ext4/20221226062015.3479416-1-yi.zhang@huaweicloud.com/",
        hardware: "Intel Xeon Gold 6140, an NVMe SSD",
        workload: "4 KiB random direct writes into unwritten blocks of one file on ext4, libaio",
        rows: &[other("10 jobs, depth 10", 11.1e3, 41.4e3)],
        beside: &[],
    },
    PublishedTable {
        experiment: "completion",
        title: "iomap: support IOCB_DIO_DEFER",
        author: "Jens Axboe",
        date: "2023-07-08",
        source: "https://kernel.googlesource.com/pub/scm/linux/kernel/git/axboe/linux-block/+/refs/heads/xfs-async-dio",
        hardware: "one core; the device is not named",
        workload: "4 KiB random direct writes of a file, fio's io_uring",
        rows: &[
            row("depth 1", "in place, depth 1", 155e3, 162e3),
            other("depth 2", 290e3, 313e3),
            other("depth 4", 533e3, 597e3),
            other("depth 8", 604e3, 827e3),
            row("depth 16", "in place, depth 16", 615e3, 845e3),
        ],
        beside: &[],
    },
];

/// The findings for experiments without a table.
const REMARKS: &[(&str, &str)] = &[(
    "fixed-files",
    "the patch \"io_uring: add file set registration\" (Jens Axboe) has no figures, and a study of registered buffers alone \
     (Paul Nowoczynski, 2021-02-10, \
     https://00pauln00.medium.com/io-uring-fixed-buffer-versus-non-fixed-buffer-performance-comparison-9fd506de6829) \
     says in words that 4 KiB I/Os gain \"close to 10%\" at higher depths",
)];

/// The tables of an experiment.
pub fn tables(experiment: &str) -> impl Iterator<Item = &'static PublishedTable> {
    TABLES.iter().filter(move |table| table.experiment == experiment)
}

/// The finding for an experiment that has no table.
pub fn remark(experiment: &str) -> Option<&'static str> {
    REMARKS.iter().find(|(name, _)| *name == experiment).map(|(_, remark)| *remark)
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    #[test]
    fn each_row_belongs_to_a_case_that_exists_and_no_case_has_two() {
        for table in TABLES {
            let experiment = cases::find(table.experiment).unwrap().remove(0);
            for row in table.rows.iter().filter(|row| row.case.is_some()) {
                assert!(
                    experiment.cases.iter().any(|case| Some(&*case.name) == row.case),
                    "{row:?}"
                );
                let same = tables(table.experiment).flat_map(|table| table.rows);
                assert_eq!(same.filter(|other| other.case == row.case).count(), 1, "{row:?}");
            }
        }
    }

    #[test]
    fn each_experiment_has_a_table_or_a_remark_and_each_table_its_source() {
        for name in cases::names().filter(|name| *name != "all") {
            assert_eq!(tables(name).count() == 0, remark(name).is_some(), "{name}");
        }
        for table in TABLES {
            assert!(table.source.starts_with("https://") && table.date.len() == 10, "{table:?}");
            assert!(table.rows.iter().all(|row| row.off > 0.0 && row.on > 0.0), "{table:?}");
        }
    }

    #[test]
    fn gains_are_those_that_the_authors_give() {
        let row = |experiment, label: &str| {
            let mut rows = tables(experiment).flat_map(|table| table.rows);
            rows.find(|row| row.label == label).unwrap().ratio()
        };
        assert!((row("completion", "depth 16") - 1.374).abs() < 0.001);
        assert!((row("completion", "depth 1") - 1.045).abs() < 0.001);
    }
}
