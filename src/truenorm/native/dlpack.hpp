// The part of DLPack's C interface that reads a tensor without taking it over.
//
// It follows version 1.3 of include/dlpack/dlpack.h of github.com/dmlc/dlpack, where each struct is specified under the
// name given here. Minor versions only append fields, so that every 1.x has these at these places; a major version
// other than MAJOR must not be read. Fields that are not used here keep their place and have a plain type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace truenorm::dlpack {

constexpr std::uint32_t MAJOR = 1;
constexpr const char* CAPSULE = "dlpack_exchange_api";  // the name of the capsule that holds an Exchange

constexpr std::int32_t CPU = 1;  // DLDeviceType: kDLCPU
// DLDataTypeCode: kDLInt, kDLFloat, kDLBfloat, kDLBool
enum Code : std::uint8_t { INTEGER = 0, FLOAT = 2, BFLOAT = 4, BOOLEAN = 6 };

struct Device {  // DLDevice
    std::int32_t type, number;
};

struct Type {  // DLDataType
    std::uint8_t code, bits;
    std::uint16_t lanes;  // 1 unless elements are vectors
};

struct Tensor {  // DLTensor
    void* data;
    Device device;
    std::int32_t axes;
    Type type;
    std::int64_t *shape, *strides;  // (axes), strides in elements; strides may be null: contiguous
    std::uint64_t byte_offset;      // from data to the first element
};

struct Exchange {                  // DLPackExchangeAPI
    std::uint32_t major, minor;    // DLPackVersion
    Exchange* previous;            // of an older version, or null
    void *allocate, *take, *give;  // of tensors that own their memory: not used here
    // Writes where the tensor of a Python object lies; valid while the object lives. 0 on success, else a Python error.
    int (*look)(void* object, Tensor* found);
};

// The C interface has no padding but that of natural alignment.
static_assert(sizeof(void*) != 8 || (sizeof(Tensor) == 48 && offsetof(Tensor, byte_offset) == 40));
static_assert(sizeof(void*) != 8 || offsetof(Exchange, look) == 40);

}  // namespace truenorm::dlpack
