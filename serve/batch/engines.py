"""Where windows are done."""

from memmodel.serve.batch.job import Engine, serve_here
from memmodel.serve.batch.ray_engine import serve_on_ray

ENGINES: dict[str, Engine] = {"local": serve_here, "ray": serve_on_ray}
