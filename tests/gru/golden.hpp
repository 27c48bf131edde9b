// Golden integer runs of the seed flow on trained networks, from outside the repository.
#pragma once
#include <memory>
#include <string>

#include "gru/owned_model.hpp"

namespace gru_test {

// Null where the data is missing. t, b: the run's steps and sequences.
std::unique_ptr<OwnedModel> load_golden(const std::string &folder, int &t, int &b);

}  // namespace gru_test
