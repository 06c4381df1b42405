package join

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// A join ends only when all peers named by the operator have answered without the header. Any
// number of other answers changes nothing.
func TestDenials(t *testing.T) {
	no := errors.New("it has another one")
	rpc := transport.ID("http://127.0.0.1:26657")
	d := &denials{
		named: []transport.Address{{ID: "aa", HostPort: "one:1"}, {HostPort: "two:2"}, {ID: rpc}},
		hosts: map[transport.ID]string{}, why: map[transport.ID]error{},
	}
	final, text := d.summary()
	require.False(t, final)
	require.Equal(t, "no response from aa@one:1, two:2, "+string(rpc), text)
	for i := range 100 {
		id := transport.ID(fmt.Sprintf("stranger %02d", i))
		d.met(transport.Address{ID: id, HostPort: fmt.Sprintf("stranger:%d", i)})
		d.denied(id, no)
	}
	final, text = d.summary()
	require.False(t, final)
	require.Contains(t, text, "and 90 more; no response from aa@one:1, two:2")

	d.met(transport.Address{ID: "aa", HostPort: "one:1"})
	d.denied("aa", no)
	d.met(transport.Address{ID: "bb", HostPort: "two:2"}) // it was named without an id
	final, _ = d.summary()
	require.False(t, final)
	d.denied("bb", no)
	final, _ = d.summary()
	require.False(t, final, "the RPC server is named, too")
	d.denied(rpc, no)
	final, text = d.summary()
	require.True(t, final)
	require.Contains(t, text, "aa@one:1: it has another one")

	final, _ = (&denials{}).summary()
	require.False(t, final, "where nobody was named, nobody has denied it")
}
