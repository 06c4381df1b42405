package liar

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"

	"github.com/starling-kv/starling/transport"
)

// Server is a transport's handler that sends invalid responses. Safe for concurrent use if the
// honest one is.
type Server struct {
	honest transport.Handler
	mode   Mode
	seed   uint64
	onLie  func(Lie)
}

// Over returns a wrapper that makes an honest handler misbehave in a mode of Serving. The same seed
// gives the same responses. onLie, if not nil, is called for every invalid response; it may be
// called concurrently.
func Over(mode Mode, seed uint64, onLie func(Lie)) func(honest transport.Handler) transport.Handler {
	if onLie == nil {
		onLie = func(Lie) {}
	}
	return func(honest transport.Handler) transport.Handler { return &Server{honest, mode, seed, onLie} }
}

// Methods of docs/spec/transport.md#methods. This package follows the document, and does not use
// the packages that encode honest messages.
const (
	MethodStatus      transport.Method = 1
	MethodCommitment  transport.Method = 2
	MethodManifest    transport.Method = 3
	MethodChunk       transport.Method = 4
	MethodSubManifest transport.Method = 5
	MethodLightBlock  transport.Method = 6
	MethodPeers       transport.Method = 9
	MethodGenesis     transport.Method = 10
	MethodWitness     transport.Method = 13
	MethodUpper       transport.Method = 14
	MethodOutline     transport.Method = 20
)

// names are the names in reports of the messages that modes change.
var names = map[transport.Method]string{
	MethodStatus: "status", MethodCommitment: "commitment", MethodManifest: "manifest",
	MethodChunk: "chunk", MethodSubManifest: "manifest of a chunk", MethodLightBlock: "light block",
	MethodWitness: "multiproof", MethodUpper: "upper tree", MethodOutline: "outline",
}

// Serve implements transport.Handler. The layouts of the bodies are those of
// docs/spec/transport.md.
func (s *Server) Serve(ctx context.Context, r transport.Request) ([]byte, error) {
	truth, err := s.honest.Serve(ctx, r)
	if err != nil || len(truth) == 0 {
		return truth, err // the node does not have it: there is nothing to damage
	}
	switch r.Method {
	case MethodStatus:
		return s.status(r, truth), nil
	case MethodLightBlock:
		return s.lightBlock(ctx, r, truth), nil
	case MethodCommitment, MethodManifest, MethodChunk, MethodSubManifest:
		return s.snapshot(ctx, r, truth)
	case MethodWitness, MethodUpper, MethodOutline:
		return s.state(ctx, r, truth)
	}
	return truth, nil
}

// report calls onLie for an invalid response.
func (s *Server) report(how Mode, r transport.Request) {
	lie := Lie{How: how, About: names[r.Method], To: r.Peer}
	if len(r.Body) >= 8 {
		lie.Height = binary.BigEndian.Uint64(r.Body)
	}
	if chunk, is := chunkOf(r); is {
		lie.Chunk = chunk
	}
	s.onLie(lie)
}

// chunkOf returns the number of the chunk that a request is about.
func chunkOf(r transport.Request) (uint32, bool) {
	if r.Method != MethodChunk && r.Method != MethodSubManifest || len(r.Body) < 12 {
		return 0, false
	}
	return binary.BigEndian.Uint32(r.Body[8:]), true
}

// random returns the random source for a request, which depends on the seed and the request only:
// two nodes with the same request get the same answer.
func (s *Server) random(r transport.Request) *rand.Rand {
	return rand.New(rand.NewPCG(s.seed, hashOf([]byte{byte(r.Method)}, r.Body)))
}

func hashOf(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, part := range parts {
		h.Write(part) //nolint:errcheck // it never fails
	}
	return h.Sum64()
}

// status changes the node's status:
//
//	version:u8 ‖ first block:u64be ‖ last block:u64be ‖ n:u16be ‖ snapshot height:u64be × n, ascending
func (s *Server) status(r transport.Request, truth []byte) []byte {
	const count, heights = 1 + 8 + 8, 1 + 8 + 8 + 2
	if len(truth) < heights+8 {
		return truth // the node has no snapshots yet, so joiners do not ask it for chunks
	}
	switch s.mode {
	case Status:
		s.report(Truncate, r)
		return bytes.Clone(truth[:len(truth)-1])
	case Lone, Future:
		s.report(s.mode, r)
		lie := bytes.Clone(truth)
		binary.BigEndian.PutUint16(lie[count:], binary.BigEndian.Uint16(lie[count:])+1)
		return binary.BigEndian.AppendUint64(lie, binary.BigEndian.Uint64(truth[len(truth)-8:])+ahead[s.mode])
	}
	return truth
}

// snapshot damages or withholds the messages of a snapshot.
func (s *Server) snapshot(ctx context.Context, r transport.Request, truth []byte) ([]byte, error) {
	chunk, piece := chunkOf(r)
	switch s.mode {
	case Withhold:
		return s.never(ctx, r)
	case Gone:
		if piece {
			s.report(Gone, r)
			return nil, transport.ErrGone
		}
	case Slow:
		return s.late(ctx, r, truth)
	case Last:
		if piece && s.isLast(ctx, r, chunk) {
			return s.never(ctx, r)
		}
	case Stale:
		return s.stale(ctx, r, truth), nil
	case Manifest:
		if r.Method == MethodManifest || r.Method == MethodSubManifest {
			return s.damaged(ctx, r, mixed[s.random(r).IntN(len(mixed))], truth), nil
		}
	case Commitment:
		if r.Method == MethodCommitment {
			return s.damaged(ctx, r, mixed[s.random(r).IntN(len(mixed))], truth), nil
		}
	}
	if how := s.way(r, chunk); piece && how != "" {
		return s.damaged(ctx, r, how, truth), nil
	}
	return truth, nil
}

// state damages or withholds parts of a sharded state. Each request begins with the height.
func (s *Server) state(ctx context.Context, r transport.Request, truth []byte) ([]byte, error) {
	switch s.mode {
	case Withhold:
		return s.never(ctx, r)
	case Gone:
		s.report(Gone, r)
		return nil, transport.ErrGone
	case Slow:
		return s.late(ctx, r, truth)
	case Stale, Swap:
		ask := r
		ask.Body = bytes.Clone(r.Body)
		binary.BigEndian.PutUint64(ask.Body, binary.BigEndian.Uint64(r.Body)-1)
		if other, err := s.honest.Serve(ctx, ask); err == nil && len(other) > 0 && !bytes.Equal(other, truth) {
			s.report(Stale, r)
			return other, nil
		}
	case Drip, Last:
		return truth, nil
	}
	how := s.mode
	if !slices.Contains(mixed, how) && how != Empty {
		how = mixed[s.random(r).IntN(len(mixed))]
	}
	if how == Swap {
		how = Corrupt // there is no other answer
	}
	return s.damaged(ctx, r, how, truth), nil
}

// way returns the kind of damage for a chunk; "" if there is none.
func (s *Server) way(r transport.Request, chunk uint32) Mode {
	switch s.mode {
	case Corrupt, Truncate, Swap, Oversize, Junk, Empty:
		return s.mode
	case Equivocate:
		return mixed[hashOf([]byte(r.Peer), binary.BigEndian.AppendUint64(nil, s.seed))%uint64(len(mixed))]
	case Gone, Slow, Drip, Last, Withhold:
		return ""
	}
	return mixed[(s.seed+uint64(chunk))%uint64(len(mixed))]
}

// damaged returns other bytes than the correct ones.
func (s *Server) damaged(ctx context.Context, r transport.Request, how Mode, truth []byte) []byte {
	if how == Swap {
		if other := s.other(ctx, r, truth); other != nil {
			s.report(Swap, r)
			return other
		}
		how = Corrupt // there is no other chunk
	}
	s.report(how, r)
	if how == Empty {
		return []byte{}
	}
	return damage(how, truth, s.random(r))
}

// other returns the answer for a neighbouring chunk; nil if there is none, or it is the same.
func (s *Server) other(ctx context.Context, r transport.Request, truth []byte) []byte {
	chunk, is := chunkOf(r)
	if !is {
		return nil
	}
	// numbers past the end, and -1 wrapped around, do not exist
	for _, number := range []uint32{chunk + 1, chunk - 1} {
		ask := r
		ask.Body = bytes.Clone(r.Body)
		binary.BigEndian.PutUint32(ask.Body[8:], number)
		if other, err := s.honest.Serve(ctx, ask); err == nil && len(other) > 0 && !bytes.Equal(other, truth) {
			return other
		}
	}
	return nil
}

// stale answers from the snapshot of another height. If no other snapshot has a different answer,
// the answer is damaged.
func (s *Server) stale(ctx context.Context, r transport.Request, truth []byte) []byte {
	status, err := s.honest.Serve(ctx, transport.Request{Peer: r.Peer, Host: r.Host, Method: MethodStatus})
	for heights := 1 + 8 + 8 + 2; err == nil && len(status) >= heights+8; status = status[:len(status)-8] {
		ask := r
		ask.Body = append(bytes.Clone(status[len(status)-8:]), r.Body[8:]...)
		if other, err := s.honest.Serve(ctx, ask); err == nil && len(other) > 0 && !bytes.Equal(other, truth) {
			s.report(Stale, r)
			return other
		}
	}
	return s.damaged(ctx, r, Corrupt, truth)
}

// never does not answer until the caller gives up.
func (s *Server) never(ctx context.Context, r transport.Request) ([]byte, error) {
	s.report(Withhold, r)
	<-ctx.Done()
	return nil, ctx.Err()
}

// late returns the correct answer, after a while.
func (s *Server) late(ctx context.Context, r transport.Request, truth []byte) ([]byte, error) {
	s.report(Slow, r)
	return truth, wait(ctx, s.random(r))
}

// isLast reports whether a chunk is the last one of its snapshot, by the commitment: chunk
// limit:u64be ‖ chunks:u32be ‖ …
func (s *Server) isLast(ctx context.Context, r transport.Request, chunk uint32) bool {
	c, err := s.honest.Serve(ctx, transport.Request{Peer: r.Peer, Host: r.Host, Method: MethodCommitment, Body: r.Body[:8]})
	return err == nil && len(c) >= 12 && chunk+1 == binary.BigEndian.Uint32(c[8:])
}

// lightBlock changes headers. It does not change the answer to a request for the newest block,
// since a false one could not be proved.
func (s *Server) lightBlock(ctx context.Context, r transport.Request, truth []byte) []byte {
	if s.mode != Header || len(r.Body) != 8 || binary.BigEndian.Uint64(r.Body) == 0 {
		return truth
	}
	height := binary.BigEndian.Uint64(r.Body)
	switch how := []Mode{Corrupt, Truncate, Stale}[(s.seed+height)%3]; how {
	case Stale:
		ask := r
		ask.Body = binary.BigEndian.AppendUint64(nil, height-1)
		if other, err := s.honest.Serve(ctx, ask); err == nil && height > 1 && len(other) > 0 {
			s.report(Stale, r)
			return other
		}
	case Corrupt:
		if forged := forge(truth); forged != nil {
			s.report(Corrupt, r)
			return forged
		}
	}
	s.report(Truncate, r)
	return bytes.Clone(truth[:len(truth)-1])
}

// forge changes the app hash in a light block, so that the signatures do not match; nil if truth is
// not a light block.
func forge(truth []byte) []byte {
	var block cmtproto.LightBlock
	if err := block.Unmarshal(truth); err != nil || block.SignedHeader == nil || block.SignedHeader.Header == nil ||
		len(block.SignedHeader.Header.AppHash) == 0 {
		return nil
	}
	block.SignedHeader.Header.AppHash[0] ^= 1
	forged, err := block.Marshal()
	if err != nil {
		return nil
	}
	return forged
}
