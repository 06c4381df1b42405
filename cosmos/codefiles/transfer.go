package codefiles

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/transport"
)

// Server serves the files in a home. It may run alongside the node, because the files do not
// change.
type Server struct{ home string }

// NewServer returns a Server of a home.
func NewServer(home string) *Server { return &Server{home} }

// Register registers the handler of the method.
func (s *Server) Register(m *transport.Mux) {
	m.Handle(iavlsync.MethodFile, transport.Weighed(transport.HandlerFunc(s.part),
		func(transport.Request) int64 { return iavlsync.FilePartBytes }))
}

func (s *Server) part(_ context.Context, r transport.Request) ([]byte, error) {
	q, err := iavlsync.DecodeFileRequest(r.Body)
	if err != nil {
		return nil, transport.ErrRefused
	}
	for i := range Modules {
		f, err := os.Open(Modules[i].path(s.home, q.Hash))
		if err != nil {
			continue
		}
		b, err := io.ReadAll(io.NewSectionReader(f, q.Offset, iavlsync.FilePartBytes))
		return b, errors.Join(err, f.Close())
	}
	return nil, transport.ErrGone
}

// ErrOtherFile reports a file of a peer that does not have the requested hash.
var ErrOtherFile = errors.New("the file does not have the hash in the state")

// partTimeout is the time limit for a part of a file.
const partTimeout = 30 * time.Second

// Fetch fetches the file with a hash from a peer. Errors include ErrOtherFile.
func Fetch(ctx context.Context, conn transport.Conn, hash iavlsync.Hash) (content []byte, err error) {
	for {
		q := iavlsync.FileRequest{Hash: hash, Offset: int64(len(content))}
		part, err := call(ctx, conn, q.Encode())
		if err != nil {
			return nil, err
		}
		content = append(content, part...)
		if len(content) > iavlsync.MaxFileBytes {
			return nil, fmt.Errorf("%w: it has more than %d bytes", ErrOtherFile, iavlsync.MaxFileBytes)
		}
		if len(part) < iavlsync.FilePartBytes {
			break
		}
	}
	if sha256.Sum256(content) != hash {
		return nil, ErrOtherFile
	}
	return content, nil
}

func call(ctx context.Context, conn transport.Conn, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	return conn.Call(ctx, transport.Call{Method: iavlsync.MethodFile, Body: body, Max: iavlsync.FilePartBytes})
}
