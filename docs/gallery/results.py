"""Ask a results database with pandas: which block size is fastest, what was refused, and how sure is the winner?

Every trial is a row, with a column for each tunable and axis. The same database answers SQL, from pandas too.
"""

import pandas
from sqlalchemy import text

import tunebench

if __name__ == "__main__":
    tunebench.tune("scalar_mul", trials=4, sizes={"M": 64, "N": 64}, tunables={"vector_width": [1, 4]})

    frame = tunebench.trials("scalar_mul", limit=None).to_frame()
    print(frame.groupby(["tunable_vector_width", "tunable_block_size"])["median_ms"].min().sort_values())
    print(frame["status"].value_counts())

    best = tunebench.best("scalar_mul").to_frame()
    print(best[["kernel", "dtype", "median_ms", "over_reference", "over_reference_low", "over_reference_high"]])

    with tunebench.connect() as database, database.reading() as connection:
        query = "SELECT kernel, status, count(*) AS trials, min(median_ms) AS fastest_ms FROM trials_flat GROUP BY 1, 2"
        print(pandas.read_sql(text(query), connection))
