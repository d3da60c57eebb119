// Runs a TorchScript rollout with libtorch alone: rollout MODEL BATCH K0 WIDTH STEPS.
// Start is 0, 0.01, 0.02, ...; prints every value of the memory, or of the output.
#include <torch/script.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  auto module = torch::jit::load(argv[1]);
  const int64_t batch = std::atoi(argv[2]), k0 = std::atoi(argv[3]), width = std::atoi(argv[4]);
  const int64_t steps = std::atoi(argv[5]);
  auto start = torch::arange(batch * k0 * width, torch::kFloat).reshape({batch, k0, width}) / 100;
  auto result = module.forward({start, steps});
  auto memory = result.isTuple() ? result.toTuple()->elements()[0].toTensor() : result.toTensor();
  auto flat = memory.contiguous();
  std::cout << std::setprecision(9);
  for (int64_t i = 0; i < flat.numel(); ++i) std::cout << flat.data_ptr<float>()[i] << "\n";
}
