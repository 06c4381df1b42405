//go:build !amd64 || purego

package sha256mb

func init() {
	kernels = []*Kernel{newKernel("portable", portable, 1)}
	best = kernels[0].tiers
	for _, name := range []string{"avx512", "shani", "avx2"} {
		absent = append(absent, name+": built without amd64 assembly")
	}
}

// run is never called: there is only the portable kernel.
func (j *job) run(code, *[32]byte, *[]byte, int) { panic("sha256mb: no kernels") }
