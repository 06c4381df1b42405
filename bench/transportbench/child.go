package transportbench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
)

// role is what a child does.
type role interface {
	do(r request) (answer, error)
	close() error
}

// Serve is the child: it answers requests until there are no more.
func Serve(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	var b begin
	if err := requests.Decode(&b); err != nil {
		return fmt.Errorf("only starling-bench itself runs this command; run 'starling-bench transport': %w", err)
	}
	child, first, opened := open(ctx, b)
	if opened != nil {
		return errors.Join(answers.Encode(answer{Error: opened.Error()}), opened)
	}
	defer func() { err = errors.Join(err, child.close()) }()
	if err := answers.Encode(first); err != nil {
		return err
	}
	return harness.Serve(requests, answers, func(r request) answer {
		a, err := child.do(r)
		if err != nil {
			return answer{Error: fmt.Sprintf("%s: %v", r.Op, err)}
		}
		return a
	})
}

func open(ctx context.Context, b begin) (role, answer, error) {
	switch b.Role {
	case roleServer:
		return openServer(b)
	case roleClient:
		return openClient(ctx, b)
	}
	return nil, answer{}, fmt.Errorf("no such role: %q", b.Role)
}

var errNoSuchRequest = errors.New("there is no such request")

const chainID = "transport"

// method is that of calls. Any would do: the handler answers all alike.
const method transport.Method = 1

// rdmaMemory is enough for maxPeers at either side.
const rdmaMemory = 1 << 30

func newFabric(hooks rdma.Hooks) *rdma.Fabric {
	return rdma.New(rdma.Options{
		Allowed: func(transport.ID, netip.Addr) bool { return true }, Memory: rdmaMemory, Hooks: hooks,
	})
}

func newKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return key, err
}

// requestBytes is the length of a request, on all paths: it is the length of the answer.
const requestBytes = 8

func encodeRequest(size int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(size)) }

func decodeRequest(b []byte, largest int) (int, error) {
	if len(b) != requestBytes || binary.BigEndian.Uint64(b) > uint64(largest) {
		return 0, fmt.Errorf("%w: no length up to %d", transport.ErrRefused, largest)
	}
	return int(binary.BigEndian.Uint64(b)), nil
}

// pattern returns the bytes of which every answer is a beginning. None is zero.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31+i>>9) | 1
	}
	return b
}

// usedBy returns what this process has used. fabric may be nil.
func usedBy(fabric *rdma.Fabric) used {
	u := used{CPU: harness.CPUTime().Total().Seconds()}
	if fabric != nil {
		u.Events = fabric.Stats().Events
	}
	return u
}
