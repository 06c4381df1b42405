package dsmbench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// role is what a child does.
type role interface {
	do(r request) (answer, error)
	close() error
}

// Serve is the child: it answers requests until there are no more.
func Serve(in io.Reader, out io.Writer) (err error) {
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	var b begin
	if err := requests.Decode(&b); err != nil {
		return fmt.Errorf("only starling-bench itself runs this command; run 'starling-bench dsm': %w", err)
	}
	child, opened := open(b)
	reply := func(r request) answer {
		if opened != nil {
			return answer{Error: fmt.Sprintf("%s: %v", r.Op, opened)}
		}
		a, err := child.do(r)
		if err != nil {
			return answer{Error: fmt.Sprintf("%s: %v", r.Op, err)}
		}
		return a
	}
	if err := answers.Encode(reply(request{Op: opBegin})); err != nil || opened != nil {
		return err
	}
	defer func() { err = errors.Join(err, child.close()) }()
	return harness.Serve(requests, answers, reply)
}

func open(b begin) (role, error) {
	switch b.Role {
	case modeLocal, modeSharded, modePaged:
		return openValidator(b)
	case roleNode:
		return openNode(b)
	case roleJoiner:
		return openJoiner(b)
	}
	return nil, fmt.Errorf("no such role: %q", b.Role)
}

// do implements role.
func (v *validator) do(r request) (answer, error) {
	switch r.Op {
	case opBegin:
		return answer{}, nil
	case opBlocks:
		return v.blocks(r)
	}
	return answer{}, errNoSuchRequest
}

var errNoSuchRequest = errors.New("there is no such request")
