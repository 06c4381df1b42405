package avlstar

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/starling-kv/starling/avlstar/sha256mb"
)

// tier has the layout of sha256mb's; its content is not used here.
type tier struct {
	_    uint8
	_, _ int
}

// best is how sha256mb.Sum distributes its messages among kernels. It has no exported setter,
// because only this test needs one.
//
//go:linkname best github.com/starling-kv/starling/avlstar/sha256mb.best
var best []tier

// useKernel makes the tree hash with one kernel only, until the test ends.
func useKernel(t *testing.T, k *sha256mb.Kernel) {
	tiers := reflect.ValueOf(k).Elem().FieldByName("tiers")
	if tiers.Type().Elem().Size() != unsafe.Sizeof(tier{}) {
		t.Fatal("sha256mb's tier has changed")
	}
	before := best
	best = *(*[]tier)(tiers.Addr().UnsafePointer())
	t.Cleanup(func() { best = before })
}
