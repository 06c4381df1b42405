package dsmbench

import (
	"bufio"
	"fmt"
	"io"

	"github.com/starling-kv/starling/internal/child"
)

type worker = child.Worker[request, answer]

// Serve runs a child process.
func Serve(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b begin) (w worker, a answer, err error) {
		switch b.Role {
		case modeLocal, modeSharded, modePaged:
			w, err = openValidator(b)
		case roleNode:
			w, a, err = openNode(b)
		case roleJoiner:
			w, err = openJoiner(b)
		case roleFeeder:
			w, err = openFeeder(b)
		default:
			err = fmt.Errorf("unknown role %q", b.Role)
		}
		return w, a, err
	})
}

// Do implements child.Worker.
func (v *validator) Do(r request, _ *bufio.Reader) (answer, error) {
	if r.Op != opBlocks {
		return answer{}, fmt.Errorf("unknown request %q", r.Op)
	}
	return v.blocks(r)
}
