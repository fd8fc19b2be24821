// Hopper's warpgroup products of eight-bit factors, in shared memory as `hopper.cuh` has halves there: 16 bytes along K in a
// row of a core matrix, 32 in one product. Sums of e4m3 are fp32 (of which the tensor cores keep some 14 bits), those of
// whole numbers int.
#pragma once

#include "eight.cuh"
#include "hopper.cuh"

#if TUNEBENCH_HOPPER

#define TUNEBENCH_EIGHTS_OF_128(types, end, letter) \
    asm volatile( \
        "{\n" \
        ".reg .pred p;\n" \
        "setp.ne.b32 p, %66, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n128k32." types " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, " \
        "%8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, " \
        "%24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, " \
        "%40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, " \
        "%56, %57, %58, %59, %60, %61, %62, %63}, " \
        "%64, %65, p" end ";\n" \
        "}\n" \
        : letter(d[0]), letter(d[1]), letter(d[2]), letter(d[3]), letter(d[4]), letter(d[5]), letter(d[6]), letter(d[7]), \
          letter(d[8]), letter(d[9]), letter(d[10]), letter(d[11]), letter(d[12]), letter(d[13]), letter(d[14]), letter(d[15]), \
          letter(d[16]), letter(d[17]), letter(d[18]), letter(d[19]), letter(d[20]), letter(d[21]), letter(d[22]), letter(d[23]), \
          letter(d[24]), letter(d[25]), letter(d[26]), letter(d[27]), letter(d[28]), letter(d[29]), letter(d[30]), letter(d[31]), \
          letter(d[32]), letter(d[33]), letter(d[34]), letter(d[35]), letter(d[36]), letter(d[37]), letter(d[38]), letter(d[39]), \
          letter(d[40]), letter(d[41]), letter(d[42]), letter(d[43]), letter(d[44]), letter(d[45]), letter(d[46]), letter(d[47]), \
          letter(d[48]), letter(d[49]), letter(d[50]), letter(d[51]), letter(d[52]), letter(d[53]), letter(d[54]), letter(d[55]), \
          letter(d[56]), letter(d[57]), letter(d[58]), letter(d[59]), letter(d[60]), letter(d[61]), letter(d[62]), letter(d[63]) \
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))

#define TUNEBENCH_EIGHTS_OF_256(types, end, letter) \
    asm volatile( \
        "{\n" \
        ".reg .pred p;\n" \
        "setp.ne.b32 p, %130, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n256k32." types " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, " \
        "%8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, " \
        "%24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, " \
        "%40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, " \
        "%56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, " \
        "%72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, " \
        "%88, %89, %90, %91, %92, %93, %94, %95, " \
        "%96, %97, %98, %99, %100, %101, %102, %103, " \
        "%104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, " \
        "%120, %121, %122, %123, %124, %125, %126, %127}, " \
        "%128, %129, p" end ";\n" \
        "}\n" \
        : letter(d[0]), letter(d[1]), letter(d[2]), letter(d[3]), letter(d[4]), letter(d[5]), letter(d[6]), letter(d[7]), \
          letter(d[8]), letter(d[9]), letter(d[10]), letter(d[11]), letter(d[12]), letter(d[13]), letter(d[14]), letter(d[15]), \
          letter(d[16]), letter(d[17]), letter(d[18]), letter(d[19]), letter(d[20]), letter(d[21]), letter(d[22]), letter(d[23]), \
          letter(d[24]), letter(d[25]), letter(d[26]), letter(d[27]), letter(d[28]), letter(d[29]), letter(d[30]), letter(d[31]), \
          letter(d[32]), letter(d[33]), letter(d[34]), letter(d[35]), letter(d[36]), letter(d[37]), letter(d[38]), letter(d[39]), \
          letter(d[40]), letter(d[41]), letter(d[42]), letter(d[43]), letter(d[44]), letter(d[45]), letter(d[46]), letter(d[47]), \
          letter(d[48]), letter(d[49]), letter(d[50]), letter(d[51]), letter(d[52]), letter(d[53]), letter(d[54]), letter(d[55]), \
          letter(d[56]), letter(d[57]), letter(d[58]), letter(d[59]), letter(d[60]), letter(d[61]), letter(d[62]), letter(d[63]), \
          letter(d[64]), letter(d[65]), letter(d[66]), letter(d[67]), letter(d[68]), letter(d[69]), letter(d[70]), letter(d[71]), \
          letter(d[72]), letter(d[73]), letter(d[74]), letter(d[75]), letter(d[76]), letter(d[77]), letter(d[78]), letter(d[79]), \
          letter(d[80]), letter(d[81]), letter(d[82]), letter(d[83]), letter(d[84]), letter(d[85]), letter(d[86]), letter(d[87]), \
          letter(d[88]), letter(d[89]), letter(d[90]), letter(d[91]), letter(d[92]), letter(d[93]), letter(d[94]), letter(d[95]), \
          letter(d[96]), letter(d[97]), letter(d[98]), letter(d[99]), letter(d[100]), letter(d[101]), letter(d[102]), letter(d[103]), \
          letter(d[104]), letter(d[105]), letter(d[106]), letter(d[107]), letter(d[108]), letter(d[109]), letter(d[110]), letter(d[111]), \
          letter(d[112]), letter(d[113]), letter(d[114]), letter(d[115]), letter(d[116]), letter(d[117]), letter(d[118]), letter(d[119]), \
          letter(d[120]), letter(d[121]), letter(d[122]), letter(d[123]), letter(d[124]), letter(d[125]), letter(d[126]), letter(d[127]) \
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))

// As `WarpgroupProduct`: d (64 x columns) = a (64 x 32) · b (columns x 32)ᵀ, plus d where `accumulate`.
template <int columns, typename T> struct ProductOfEights;
template <> struct ProductOfEights<128, e4m3_t> {
    using sum_t = float;
    static __device__ __forceinline__ void run(float (&d)[64], u64 a, u64 b, bool accumulate) {
        TUNEBENCH_EIGHTS_OF_128("f32.e4m3.e4m3", ", 1, 1", "+f");
    }
};
template <> struct ProductOfEights<128, whole_t> {
    using sum_t = int;
    static __device__ __forceinline__ void run(int (&d)[64], u64 a, u64 b, bool accumulate) {
        TUNEBENCH_EIGHTS_OF_128("s32.s8.s8", "", "+r");
    }
};
template <> struct ProductOfEights<256, e4m3_t> {
    using sum_t = float;
    static __device__ __forceinline__ void run(float (&d)[128], u64 a, u64 b, bool accumulate) {
        TUNEBENCH_EIGHTS_OF_256("f32.e4m3.e4m3", ", 1, 1", "+f");
    }
};
template <> struct ProductOfEights<256, whole_t> {
    using sum_t = int;
    static __device__ __forceinline__ void run(int (&d)[128], u64 a, u64 b, bool accumulate) {
        TUNEBENCH_EIGHTS_OF_256("s32.s8.s8", "", "+r");
    }
};
#undef TUNEBENCH_EIGHTS_OF_128
#undef TUNEBENCH_EIGHTS_OF_256

#endif  // TUNEBENCH_HOPPER
