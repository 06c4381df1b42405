package transportbench

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/internal/child"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
)

type worker = child.Worker[request, answer]

// Serve runs a child process.
func Serve(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b begin) (worker, answer, error) {
		switch b.Role {
		case roleServer:
			return openServer(b)
		case roleClient:
			return openClient(b)
		}
		return nil, answer{}, fmt.Errorf("unknown role %q", b.Role)
	})
}

const chainID = "transport"

// method is the method of all calls. Its value does not matter: the handler treats all methods
// alike.
const method transport.Method = 1

// rdmaMemory is enough for maxPeers on either side.
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

// requestBytes is the length of a request on all paths. A request is the length of its response.
const requestBytes = 8

func encodeRequest(size int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(size)) }

func decodeRequest(b []byte, largest int) (int, error) {
	if len(b) != requestBytes || binary.BigEndian.Uint64(b) > uint64(largest) {
		return 0, fmt.Errorf("%w: the request is not a length of at most %d", transport.ErrRefused, largest)
	}
	return int(binary.BigEndian.Uint64(b)), nil
}

// pattern returns n bytes without zeros. Every response is a prefix of them.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31+i>>9) | 1
	}
	return b
}

// usedBy returns what this process has used so far. fabric may be nil.
func usedBy(fabric *rdma.Fabric) used {
	u := used{CPU: harness.CPUTime().Seconds()}
	if fabric != nil {
		u.Events = fabric.Stats().Events
	}
	return u
}
