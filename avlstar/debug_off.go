//go:build !avlstardebug

package avlstar

// debug turns on the checks of debug_on.go: go test -tags avlstardebug.
const debug = false

const poison = 0

func (t *tree) check(*Version) {}
func (t *tree) checkSide()     {}
