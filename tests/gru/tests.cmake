# The quantized GRU. Networks and golden runs lie outside the repository; their tests skip without.
qk_test(test_gru gru/accuracy_test.cpp gru/api_test.cpp gru/network.cpp gru/owned_model.cpp
        gru/random_test.cpp gru/rules_of_life_test.cpp gru/rules_test.cpp reference/gru/gru_reference.cpp
        LIBRARIES qk_inside)
target_compile_definitions(
  test_gru PRIVATE QK_SHARED_DATA_DEFAULT="${PROJECT_SOURCE_DIR}/../shared/data")
# The golden runs are described in JSON.
find_library(QK_JANSSON jansson)
if(QK_JANSSON AND NOT CMAKE_CROSSCOMPILING)
  target_sources(test_gru PRIVATE gru/golden_test.cpp)
  target_link_libraries(test_gru PRIVATE ${QK_JANSSON})
endif()
