// Where the bytes of a packed quantized matrix stand. Plain integers only, so that kernels of any instruction set may
// include this file.
//
// A panel is 16 output rows (one per 32-bit lane), all columns, contiguous: superblocks one after the other. A group is
// 32 consecutive columns k; a superblock is two groups (64 columns), four (128) for kU4G128, eight (256) for the K
// formats. Rows are padded to 16 and columns to a superblock with zeros, scales included. Every line is 64 bytes; r is
// the row in the panel, b = 0..3; vector v of a group is its columns 4 v .. 4 v + 3. A scale (and a minimum) belongs to
// one group, or to two or four: what a checkpoint calls groups of 64 or 128 is two or four of these groups that share
// it.
//
//   nibble line j = 0..3 of a group: byte 4 r + b has q[r][4 j + b] in its low half, q[r][16 + 4 j + b] in its high one
//   byte line j = 0..7 of a group:   byte 4 r + b is q[r][4 j + b] + 128, unsigned
//   masks of a group (64 bytes):     eight of 64 bits, one per vector v: bit 4 r + b is bit 4 of q[r][4 v + b]
//   planes of a group (128 bytes):   line i = 0, 1: bits 2 w and 2 w + 1 of byte 4 r + b are bits 4 and 5 of
//                                    q[r][16 i + 4 w + b], w = 0..3
//
//   format   holds  superblock, in this order                                                   bytes  value of w[r][k]
//   kU4      Q4_1   2 x 4 nibble lines, scales f16 [2][16], mins f16 [2][16]                      640  scale q + min
//   kU4Zero  Q4_0   2 x 4 nibble lines, scales                                                    576  scale (q - 8)
//   kU5      Q5_1   2 x 4 nibble lines, 2 x masks, scales, mins                                   768  scale q + min
//   kU5Zero  Q5_0   2 x 4 nibble lines, 2 x masks, scales                                         704  scale (q - 16)
//   kS8      Q8_0   2 x 8 byte lines, scales                                                     1088  scale q
//   kU4G64   -      2 x 4 nibble lines, scales f16 [1][16], mins f16 [1][16]                      576  scale q + min
//   kU4G128  -      4 x 4 nibble lines, scales f16 [1][16], mins f16 [1][16]                     1088  scale q + min
//   kU4K     Q4_K   8 x 4 nibble lines, sub-scales u8 [8][16], sub-mins u8 [8][16], d f16 [16],
//                   dmin f16 [16]                                                                2368  d sc q - dmin m
//   kU5K     Q5_K   8 x 4 nibble lines, 8 x masks, sub-scales, sub-mins, d, dmin                 2880  d sc q - dmin m
//   kU6K     Q6_K   8 x 4 nibble lines, 8 x planes, scales s8 [8][2][16] (of 16 columns each),
//                   d f16 [16], 32 bytes of padding                                              3392  d sc (q - 32)
#pragma once

namespace llmsrv::packed {

constexpr int kPanelRows = 16;
constexpr int kGroupCols = 32;
constexpr int kLineBytes = 64;

constexpr int kNibbleGroupBytes = 4 * kLineBytes;
constexpr int kByteGroupBytes = 8 * kLineBytes;
constexpr int kMaskGroupBytes = kLineBytes;
constexpr int kPlaneGroupBytes = 2 * kLineBytes;

// Offsets in bytes from the start of a superblock; the lines of low bits stand at 0. A part that a format does not have
// is empty: it starts where the next one does.
struct Superblock {
  int groups;
  int low_group_bytes;   // lines of one group: nibbles or whole bytes
  int high_group_bytes;  // masks or planes of one group, or 0
  int high;              // masks or planes
  int scales;            // f16 of each group, or the sub-scales of a K format
  int mins;              // likewise
  int d;                 // K formats: f16 of each row
  int d_min;
  int bytes;
  int groups_per_scale = 1;
};

// No `inline`: each file that includes this has its own copies, which vanish.
constexpr Superblock kU4 = {2, kNibbleGroupBytes, 0, 512, 512, 576, 640, 640, 640};
constexpr Superblock kU4Zero = {2, kNibbleGroupBytes, 0, 512, 512, 576, 576, 576, 576};
constexpr Superblock kU5 = {2, kNibbleGroupBytes, kMaskGroupBytes, 512, 640, 704, 768, 768, 768};
constexpr Superblock kU5Zero = {2, kNibbleGroupBytes, kMaskGroupBytes, 512, 640, 704, 704, 704, 704};
constexpr Superblock kS8 = {2, kByteGroupBytes, 0, 1024, 1024, 1088, 1088, 1088, 1088};
constexpr Superblock kU4G64 = {2, kNibbleGroupBytes, 0, 512, 512, 544, 576, 576, 576, 2};
constexpr Superblock kU4G128 = {4, kNibbleGroupBytes, 0, 1024, 1024, 1056, 1088, 1088, 1088, 4};
constexpr Superblock kU4K = {8, kNibbleGroupBytes, 0, 2048, 2048, 2176, 2304, 2336, 2368};
constexpr Superblock kU5K = {8, kNibbleGroupBytes, kMaskGroupBytes, 2048, 2560, 2688, 2816, 2848, 2880};
constexpr Superblock kU6K = {8, kNibbleGroupBytes, kPlaneGroupBytes, 2048, 3072, 3328, 3328, 3360, 3392};

}  // namespace llmsrv::packed
