//go:build amd64 && !purego

package sha256mb

import (
	"slices"

	"github.com/klauspost/cpuid/v2"
)

// The smallest number of messages for which a kernel is fastest, measured with BenchmarkFew on a
// Sapphire Rapids for one and two blocks. A partial group costs a kernel as much as a full one: 560
// ns for two blocks (avx512), 125 (shani), 710 (avx2). One message costs crypto/sha256 127 ns with
// the SHA instructions and 320 without.
const (
	minAVX512      = 9 // eight messages are four pairs for shani
	minAVX512NoSHA = 2
	minSHANI       = 2
	minAVX2        = 3 // without the SHA instructions; with them, avx2 is never chosen
)

func init() {
	// cpuid reports a feature only if the operating system keeps the registers that it needs
	// (XCR0).
	kernels, best, absent = detect(func(f cpuid.FeatureID) bool { return cpuid.CPU.Supports(f) })
}

// detect returns the kernels that a CPU with these features can run, the tiers by which they share
// a sum, and the absent kernels.
func detect(supports func(cpuid.FeatureID) bool) (kernels []*Kernel, tiers []tier, absent []string) {
	min512 := minAVX512
	if !supports(cpuid.SHA) {
		min512 = minAVX512NoSHA
	}
	for _, k := range []struct {
		*Kernel
		needs []cpuid.FeatureID
		min   int
	}{
		{newKernel("avx512", avx512, 16), []cpuid.FeatureID{cpuid.AVX512F, cpuid.AVX512BW}, min512},
		{newKernel("shani", shani, 2), []cpuid.FeatureID{cpuid.SHA, cpuid.SSSE3, cpuid.SSE4}, minSHANI},
		{newKernel("avx2", avx2, 8), []cpuid.FeatureID{cpuid.AVX2}, minAVX2},
	} {
		if i := slices.IndexFunc(k.needs, func(f cpuid.FeatureID) bool { return !supports(f) }); i >= 0 {
			absent = append(absent, k.Name+": the CPU does not support "+k.needs[i].String())
			continue
		}
		kernels = append(kernels, k.Kernel)
		tiers = append(tiers, tier{k.code, k.Lanes, k.min})
	}
	kernels = append(kernels, newKernel("portable", portable, 1))
	tiers = append(tiers, tier{portable, 1, 1})
	return kernels, tiers, absent
}

// run hashes groups × lanes messages. The calls are direct, so that the compiler can prove that the
// arguments do not escape.
func (j *job) run(c code, out *[32]byte, msgs *[]byte, groups int) {
	switch c {
	case avx512:
		sumAVX512(out, msgs, uint64(groups), j.full, j.tail, &j.pad)
	case shani:
		sumSHANI(out, msgs, uint64(groups), j.full, j.tail, &j.pad)
	case avx2:
		sumAVX2(out, msgs, uint64(groups), j.full, j.tail, &j.pad)
	}
}
