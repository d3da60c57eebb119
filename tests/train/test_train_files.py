import datetime

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from memmodel.train.files import read_columns


@pytest.fixture
def write(tmp_path):
    def write(text, name="a b é.csv"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_csv(write):
    path = write("day,a,b\n2020-01-01,1,0.5\n2020-01-02,,1.5\n2020-01-03,3,NaN\n")
    found = read_columns(path)
    assert list(found) == ["a", "b"]
    np.testing.assert_array_equal(found["a"], [1, np.nan, 3])
    np.testing.assert_array_equal(found["b"], [0.5, 1.5, np.nan])
    assert all(values.dtype == np.float64 for values in found.values())


def test_columns_choose_and_order(write):
    assert list(read_columns(write("a,b,c\n1,2,x\n3,4,y\n"), ["b", "a"])) == ["b", "a"]


def test_parquet_of_every_number_type(tmp_path):
    table = pa.table(
        {
            "when": pa.array([datetime.datetime(2020, 1, day) for day in (1, 2)]),
            "i": pa.array([1, None], pa.int8()),
            "f": pa.array([1.5, 2.5], pa.float32()),
            "d": pa.array([1, 2], pa.decimal128(5)),
            "__index_level_0__": pa.array([0, 1]),
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet")
    found = read_columns(tmp_path / "x.parquet")
    assert list(found) == ["i", "f", "d"]
    np.testing.assert_array_equal(found["i"], [1, np.nan])
    np.testing.assert_array_equal(found["d"], [1, 2])


def test_npy(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(5, dtype=np.int32))
    np.testing.assert_array_equal(read_columns(tmp_path / "one.npy")["0"], range(5))
    np.save(tmp_path / "two.npy", np.arange(6.0).reshape(3, 2))
    found = read_columns(tmp_path / "two.npy", ["1"])
    assert list(found) == ["1"]
    np.testing.assert_array_equal(found["1"], [1, 3, 5])


def test_npz_holds_series_of_any_length(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(3), b=np.arange(10.0).reshape(5, 2))
    found = read_columns(tmp_path / "x.npz")
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b.0": 5, "b.1": 5}


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("a,b\n1,x\n2,y\n", None, "column 'b' is not numeric: row 1 holds 'x'"),
        ("a,b\n1,1\n2,1\n3,oops\n", None, "column 'b' is not numeric: row 3 holds 'oops'"),
        ("a,b\n1,true\n2,false\n", None, "column 'b' is not numeric: its type is bool"),
        ("a,b\n1,\n2,\n", None, "column 'b' is empty"),
        ("a,b\n1,2\n", ["a", "c", "d"], "no column 'c', 'd'; there are 'a', 'b'"),
        ("a,a,b\n1,2,3\n", None, "these repeat: a"),
        ("1958.2,316.1\n1958.3,317.3\n", None, "the first line must name the columns"),
        ("t,a\n2020-01-02,1\n2020-01-01,2\n", None, "time column 't' must increase"),
        ("t,a\n2020-01-01,1\n2020-01-01,2\n", ["a"], "time column 't' must increase"),
        ("a,b\n1,2\n3\n", None, "Expected 2 columns, got 1"),
        ("t;a\n1;2,5\n", None, "columns must be separated by commas, decimals by points"),
        ("", None, "Empty CSV"),
    ],
)
def test_csv_errors_name_what_is_wrong(write, text, columns, words):
    path = write(text)
    with pytest.raises(ValueError, match=words) as error:
        read_columns(path, columns)
    assert str(path) in str(error.value)


def test_other_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such data file"):
        read_columns(tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"data must be one of .csv, .parquet, .npy, .npz, got"):
        read_columns(tmp_path / "x.xlsx")
    np.save(tmp_path / "x.npy", np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"must be \(T,\) or \(T, columns\), got shape \(2, 2, 2"):
        read_columns(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", a=np.array(["x", "y"]))
    with pytest.raises(ValueError, match="column 'a' is not numeric: its type is <U1"):
        read_columns(tmp_path / "x.npz")
    np.save(tmp_path / "o.npy", np.array([1, None]), allow_pickle=True)
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        read_columns(tmp_path / "o.npy")
    for suffix in (".npy", ".npz", ".parquet"):
        (tmp_path / f"bad{suffix}").write_bytes(b"not this")
        with pytest.raises(ValueError, match=f"bad{suffix}"):
            read_columns(tmp_path / f"bad{suffix}")
        (tmp_path / f"empty{suffix}").write_bytes(b"")
        with pytest.raises(ValueError, match=f"empty{suffix}"):
            read_columns(tmp_path / f"empty{suffix}")


def test_damaged_npz(tmp_path):
    np.savez(tmp_path / "whole.npz", a=np.arange(9.0))
    path = tmp_path / "cut.npz"
    path.write_bytes((tmp_path / "whole.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cut\.npz"):
        read_columns(path)


@pytest.mark.parametrize("first", ["1990-01-31", "1990-01", "1990/01/31", "1990-01-31 12:00"])
def test_a_column_of_dates_is_no_series(tmp_path, first):
    path = tmp_path / "series.csv"
    path.write_text(f"when,x\n{first},1.0\n{first.replace('1990', '1991')},2.0\n")
    columns = read_columns(path)
    assert {name: values.tolist() for name, values in columns.items()} == {"x": [1.0, 2.0]}
