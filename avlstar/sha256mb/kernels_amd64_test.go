//go:build amd64 && !purego

package sha256mb

import (
	"slices"
	"testing"

	"github.com/klauspost/cpuid/v2"
	"github.com/stretchr/testify/require"
)

// without returns the result of detect for this CPU without some features.
func without(lacks ...cpuid.FeatureID) ([]*Kernel, []tier, []string) {
	return detect(func(f cpuid.FeatureID) bool { return cpuid.CPU.Supports(f) && !slices.Contains(lacks, f) })
}

func init() {
	for name, lacks := range map[string][]cpuid.FeatureID{
		"Sum without SHA":             {cpuid.SHA},
		"Sum without AVX-512":         {cpuid.AVX512F},
		"Sum without AVX-512 and SHA": {cpuid.AVX512F, cpuid.SHA},
		"Sum with nothing":            {cpuid.AVX512F, cpuid.SHA, cpuid.AVX2},
	} {
		_, lesser[name], _ = without(lacks...)
	}
}

func TestDetect(t *testing.T) {
	kernels, tiers, absent := detect(func(cpuid.FeatureID) bool { return true })
	require.Equal(t, []string{"avx512", "shani", "avx2", "portable"}, names(kernels))
	require.Equal(t, []tier{{avx512, 16, minAVX512}, {shani, 2, minSHANI}, {avx2, 8, minAVX2}, {portable, 1, 1}}, tiers)
	require.Empty(t, absent)

	kernels, tiers, absent = detect(func(f cpuid.FeatureID) bool { return f != cpuid.SHA && f != cpuid.AVX512BW })
	require.Equal(t, []string{"avx2", "portable"}, names(kernels))
	require.Equal(t, []tier{{avx2, 8, minAVX2}, {portable, 1, 1}}, tiers)
	require.Equal(t, []string{"avx512: the CPU does not support AVX512BW", "shani: the CPU does not support SHA"}, absent)
}

func names(kernels []*Kernel) (names []string) {
	for _, k := range kernels {
		names = append(names, k.Name)
	}
	return names
}
