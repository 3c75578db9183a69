// Train a bundle of ortpipe on a CSV file, and print the loss of each step: train BUNDLE ROWS.csv LABEL EPOCHS
//
// g++ -std=c++17 train.cpp -I$ORT_HOME/include -L$ORT_HOME/lib -lonnxruntime -o train     (and nlohmann-json3-dev)
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

using Json = nlohmann::json;
using Shape = std::vector<int64_t>;
using Table = std::map<std::string, std::vector<std::string>>;  // column -> values

const std::map<std::string, std::pair<ONNXTensorElementDataType, size_t>> TYPES = {
    {"float32", {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4}},
    {"float64", {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8}},
    {"int64", {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8}},
    {"bool", {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1}}};

Ort::AllocatorWithDefaultOptions allocator;

const std::vector<std::string>& column(const Table& table, const std::string& name) {
  if (!table.count(name)) throw std::runtime_error("The file has no column " + name);
  return table.at(name);
}

Ort::Value tensor(const std::string& dtype, const Shape& shape, const void* data) {
  if (!TYPES.count(dtype)) throw std::runtime_error("Export the bundle without --float16: it has " + dtype);
  const auto [type, size] = TYPES.at(dtype);
  Ort::Value value = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type);
  std::memcpy(value.GetTensorMutableRawData(), data, value.GetTensorTypeAndShapeInfo().GetElementCount() * size);
  return value;
}

Table read_csv(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> names;
  Table table;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::vector<std::string> row;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = line.find(',', begin);
      row.push_back(line.substr(begin, end - begin));
    }
    if (names.empty()) {
      names = row;
    } else if (row.size() != names.size()) {
      throw std::runtime_error("Each row must have a value for each column: " + line);
    } else {
      for (size_t i = 0; i < names.size(); ++i) table[names[i]].push_back(row[i]);
    }
  }
  return table;
}

const std::map<std::string, std::regex> FORMS = {
    {"truth", std::regex("|true|false")},
    {"date", std::regex(R"(|\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ]([01]\d|2[0-3]):[0-5]\d.*)?)")}};

void check_word(const std::string& cell, const std::string& kind) {
  if (FORMS.count(kind) && !std::regex_match(cell, FORMS.at(kind)))
    throw std::runtime_error("Write true or false, and dates as 2026-01-31: " + cell);
}

float number(const std::string& cell) {
  size_t end = 0;
  const float value = cell.empty() ? NAN : std::stof(cell, &end);
  if (end != cell.size()) throw std::runtime_error("Write numbers as 1.5: " + cell);
  return value;
}

// Return one input of `count` batches of `size` rows from row `first` on.
Ort::Value batches(const Json& input, const std::vector<std::string>& columns, const Table& table, const Json& classes,
                   const std::string& kind, size_t first, size_t count, size_t size) {
  const std::string dtype = input["dtype"];
  Shape shape = {int64_t(count), int64_t(size)};
  if (input["shape"].size() == 3) shape.push_back(int64_t(columns.size()));
  std::vector<std::string> cells;
  for (size_t row = first; row < first + count * size; ++row)
    for (const auto& name : columns) cells.push_back(column(table, name)[row]);
  if (dtype == "string") {
    Ort::Value value =
        Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
    std::vector<const char*> words;
    for (const auto& cell : cells) {
      check_word(cell, kind);
      words.push_back(cell.c_str());
    }
    value.FillStringTensor(words.data(), words.size());
    return value;
  }
  if (dtype == "int64") {
    std::vector<int64_t> numbers;
    for (const auto& cell : cells) {
      const auto is_cell = [&](const Json& name) { return (name.is_string() ? name.get<std::string>() : name.dump()) == cell; };
      const auto place = std::find_if(classes.begin(), classes.end(), is_cell);
      if (!classes.empty() && place == classes.end()) throw std::runtime_error("A label must be a class: " + cell);
      numbers.push_back(classes.empty() ? std::stoll(cell) : place - classes.begin());
    }
    return tensor(dtype, shape, numbers.data());
  }
  std::vector<float> numbers;
  for (const auto& cell : cells) numbers.push_back(number(cell));
  return tensor("float32", shape, numbers.data());
}

int main(int count, char** arguments) try {
  if (count != 5) throw std::runtime_error("Usage: train BUNDLE ROWS.csv LABEL EPOCHS");
  const std::string folder = arguments[1], label = arguments[3];
  std::ifstream state_file(folder + "/state.bin", std::ios::binary), description(folder + "/bundle.json");
  const std::string raw{std::istreambuf_iterator<char>(state_file), {}};
  const Json bundle = Json::parse(description);
  const Table table = read_csv(arguments[2]);
  const size_t rows = column(table, label).size(), size = bundle["batch_size"];

  std::map<std::string, Json> places, inputs;
  for (const auto& place : bundle["state"]["tensors"]) places[place["name"]] = place;
  for (const auto& input : bundle["graphs"]["train"]["inputs"]) inputs[input["name"]] = input;
  std::vector<std::string> names;
  std::vector<const char*> in, out;
  for (const char* part : {"carried", "rows", "scalars"})
    for (const auto& name : bundle[part]) names.push_back(name);
  for (const auto& name : names) in.push_back(name.c_str());
  std::vector<std::string> outputs;
  for (const auto& output : bundle["graphs"]["train"]["outputs"]) outputs.push_back(output["name"]);
  for (const auto& name : outputs) out.push_back(name.c_str());

  std::vector<Ort::Value> state;
  for (const std::string name : bundle["carried"]) {
    const Json& place = places.at(name);
    state.push_back(tensor(place["dtype"], place["shape"].get<Shape>(), raw.data() + size_t(place["offset"])));
  }
  Ort::Env environment;
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  options.DisableMemPattern();  // in 1.17 and 1.18, it can change values
  Ort::Session session(environment, (folder + "/train.onnx").c_str(), options);

  size_t done = 0;
  const auto train = [&](size_t first, size_t steps, size_t size) {
    std::vector<Ort::Value> feeds = std::move(state);
    for (const std::string name : bundle["rows"]) {
      const Json& head = bundle["predictions"][0];
      const bool is_label = name == head["label"];
      const Json classes = is_label && head["classes"].is_array() ? head["classes"] : Json::array();
      std::vector<std::string> columns = {is_label ? label : name};
      if (bundle["columns"].contains(name)) columns = bundle["columns"][name].get<std::vector<std::string>>();
      const std::string kind = bundle["table"].value(name, Json::object()).value("kind", "number");
      feeds.push_back(batches(inputs.at(name), columns, table, classes, kind, first, steps, size));
    }
    for (const std::string name : bundle["scalars"]) {
      const Json& place = places.at("scalars/" + name);
      const auto* numbers = reinterpret_cast<const float*>(raw.data() + size_t(place["offset"]));
      std::vector<float> chosen;
      for (size_t step = done; step < done + steps; ++step)
        chosen.push_back(numbers[std::min(step, size_t(place["shape"][0]) - 1)]);
      feeds.push_back(tensor("float32", {int64_t(steps)}, chosen.data()));
    }
    auto results = session.Run(Ort::RunOptions{}, in.data(), feeds.data(), in.size(), out.data(), out.size());
    const float* losses = results.back().GetTensorData<float>();
    for (size_t step = 0; step < steps; ++step) std::printf("%.9g\n", losses[step]);
    results.pop_back();
    state = std::move(results);
    done += steps;
  };
  for (int epoch = 0; epoch < std::stoi(arguments[4]); ++epoch) {
    if (rows / size) train(0, rows / size, size);
    if (rows % size) train(rows - rows % size, 1, rows % size);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
