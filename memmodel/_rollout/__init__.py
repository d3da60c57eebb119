"""Rolling a cell out: the public function and the ways it is carried out."""

from memmodel._rollout.function import rollout

__all__ = ["rollout"]
