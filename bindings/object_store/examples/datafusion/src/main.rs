//! DataFusion writes a table into a volume as Parquet files, one folder for each city, and answers a query from them.
//!
//!     cd bindings/object_store/examples/datafusion && cargo run

use std::error::Error;
use std::sync::Arc;

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::SessionContext;
use uringfs::{AsyncVolume, FormatOptions};
use uringfs_object_store::{UringfsStore, UringfsStore013};

const TRIPS: i64 = 1_000_000;
const CITIES: i64 = 4;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = tempfile::tempdir()?;
    let options = FormatOptions::new().size(256 << 20).label("tables");
    // A volume that exists: UringfsStore::open("disk.img")
    let volume = AsyncVolume::create(folder.path().join("image"), &options).await?;
    let store = UringfsStore::new(volume);

    let context = SessionContext::new();
    // Paths that begin with this are in the volume; the name is the program's choice.
    let address = ObjectStoreUrl::parse("uringfs://tables")?;
    let for_datafusion = Arc::new(UringfsStore013::from(store.clone()));
    context.register_object_store(address.as_ref(), for_datafusion);

    let trips = format!(
        "COPY (SELECT value AS id, value % 100 AS minutes, value % {CITIES} AS city
               FROM generate_series(1, {TRIPS}))
         TO 'uringfs://tables/trips/' STORED AS PARQUET PARTITIONED BY (city)"
    );
    context.sql(&trips).await?.collect().await?;

    let table = "CREATE EXTERNAL TABLE trips (id BIGINT, minutes BIGINT, city BIGINT)
                 STORED AS PARQUET PARTITIONED BY (city) LOCATION 'uringfs://tables/trips/'";
    context.sql(table).await?.collect().await?;
    context
        .sql("SELECT city, count(*) AS trips, avg(minutes) FROM trips GROUP BY city ORDER BY city")
        .await?
        .show()
        .await?;

    let one_city = "SELECT count(*), sum(id) FROM trips WHERE city = 1 AND minutes < 50";
    let rows = context.sql(one_city).await?.collect().await?;
    let [count, sum] =
        [0, 1].map(|column| rows[0].column(column).as_primitive::<Int64Type>().value(0));
    println!("{count} trips of less than 50 minutes in city 1; the sum of their ids is {sum}");
    let expected: Vec<i64> = (1..=TRIPS).filter(|id| id % CITIES == 1 && id % 100 < 50).collect();
    assert_eq!((count, sum), (expected.len() as i64, expected.iter().sum()));

    drop(context);
    store.into_volume().close().await?;
    Ok(())
}
