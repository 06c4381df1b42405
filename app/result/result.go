// Package result is the format of the query for the result of a transaction
// (docs/spec/queries.md).
package result

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Path is the path of the ABCI query. Its data is a Request. The value of its response is an
// abci.TxResult without the transaction; it is empty while the node has no result.
const Path = "/result"

// Request asks for the result of a transaction.
type Request struct {
	ID     [sha256.Size]byte // hash of the transaction
	WaitMS uint32            // how long to wait if there is no result yet; a node may wait less
}

// Encode encodes the request.
//
//	id:32 ‖ wait in milliseconds:u32be
func (r Request) Encode() []byte { return binary.BigEndian.AppendUint32(r.ID[:], r.WaitMS) }

// DecodeRequest is the inverse of Encode.
func DecodeRequest(b []byte) (r Request, err error) {
	if len(b) != sha256.Size+4 {
		return r, fmt.Errorf("a request for a result has %d bytes, this one has %d", sha256.Size+4, len(b))
	}
	copy(r.ID[:], b)
	r.WaitMS = binary.BigEndian.Uint32(b[sha256.Size:])
	return r, nil
}
