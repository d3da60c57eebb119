"""The demo's data: atmospheric CO2 at Mauna Loa, weekly, 1958 to 2001."""

from importlib.resources import files
from pathlib import Path

TITLE = "weekly atmospheric CO2 at Mauna Loa, 1958-2001, in ppm"
SOURCE = "Keeling and Whorf, Carbon Dioxide Information Analysis Center; from statsmodels"
COLUMNS = ("co2",)  # the other column, `date`, is written as one number


def co2_file() -> Path:
    """The CSV file inside the installed statsmodels."""
    return Path(str(files("statsmodels.datasets.co2").joinpath("co2.csv")))
