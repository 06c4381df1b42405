package catchup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// Blocks is the part of CometBFT's block store (*store.BlockStore) that a Server needs. The methods
// are called concurrently. They return nil for blocks that the store does not have.
type Blocks interface {
	LoadBlockMeta(height int64) *types.BlockMeta
	LoadBlockPart(height int64, index int) *types.Part
	LoadBlockCommit(height int64) *types.Commit
}

// Server serves blocks from the node's own store.
type Server struct {
	logger log.Logger
	stores struct { // read-locked while the store is in use, so that SetBlocks can wait
		sync.RWMutex
		blocks Blocks // nil: none
	}
}

// NewServer returns a Server without blocks; see SetBlocks. A nil logger is silent.
func NewServer(logger log.Logger) *Server {
	if logger == nil {
		logger = log.NewNopLogger()
	}
	return &Server{logger: logger}
}

// SetBlocks replaces the store; nil removes it. When it returns, the former store is no longer in
// use.
func (s *Server) SetBlocks(blocks Blocks) {
	s.stores.Lock()
	defer s.stores.Unlock()
	s.stores.blocks = blocks
}

// Register registers the handler.
func (s *Server) Register(m *transport.Mux) {
	m.Handle(MethodBlocks, transport.Weighed(transport.HandlerFunc(s.serve), weigh))
}

// weigh returns the maximum memory of an answer: its bytes, plus one part or commit.
func weigh(r transport.Request) int64 {
	asked, err := decodeRequest(r.Body)
	if err != nil {
		return 0
	}
	return int64(asked.limit) + int64(types.BlockPartSizeBytes)
}

func (s *Server) serve(ctx context.Context, r transport.Request) ([]byte, error) {
	asked, err := decodeRequest(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrRefused, err)
	}
	s.stores.RLock()
	defer s.stores.RUnlock()
	if s.stores.blocks == nil {
		return nil, fmt.Errorf("no blocks: %w", transport.ErrGone)
	}
	var answer []byte
	err = lightclient.Guard(func() (err error) { // CometBFT's store panics when its database fails
		answer, err = encodeBlocks(ctx, s.stores.blocks, asked)
		return err
	})
	if err != nil && !errors.Is(err, transport.ErrGone) {
		s.logger.Error("serving blocks to a peer failed", "peer", r.Peer, "err", err)
	}
	return answer, err
}

// encodeBlocks answers a request. The commit of a block is the canonical one, which the next block
// contains, so the last block of the chain is not served.
func encodeBlocks(ctx context.Context, blocks Blocks, asked request) ([]byte, error) {
	var (
		answer []byte
		last   []byte // commit of the last block in answer
		n      int
	)
	for ; n < asked.count && ctx.Err() == nil; n++ {
		height := asked.from + int64(n)
		meta, commit := blocks.LoadBlockMeta(height), blocks.LoadBlockCommit(height)
		if meta == nil || commit == nil {
			break
		}
		proof, err := commit.ToProto().Marshal()
		if err != nil {
			return nil, fmt.Errorf("encode commit %d: %w", height, err)
		}
		size := meta.BlockSize + 2*lengthBytes + len(proof)
		if n == 0 {
			if size += countBytes; size > asked.limit {
				return needAnswer(size), nil
			}
			// an estimate of the final size, never above the limit
			answer = make([]byte, countBytes, min(asked.limit, size*asked.count))
		} else if len(answer)+size > asked.limit {
			break
		}
		if answer, err = appendBlock(answer, blocks, height, meta); err != nil {
			return nil, err
		}
		last = proof
	}
	if n == 0 {
		return nil, fmt.Errorf("blocks from %d: %w", asked.from, transport.ErrGone)
	}
	binary.BigEndian.PutUint16(answer, uint16(n))
	return appendPart(answer, last), nil
}

// appendBlock appends the bytes of a block from its parts. It verifies them: a damaged store must
// not make this node look Byzantine.
func appendBlock(answer []byte, blocks Blocks, height int64, meta *types.BlockMeta) ([]byte, error) {
	answer = binary.BigEndian.AppendUint32(answer, uint32(meta.BlockSize))
	start := len(answer)
	for i := range int(meta.BlockID.PartSetHeader.Total) {
		part := blocks.LoadBlockPart(height, i)
		if part == nil { // pruned meanwhile
			return nil, fmt.Errorf("block %d: %w", height, transport.ErrGone)
		}
		answer = append(answer, part.Bytes...)
	}
	raw := answer[start:]
	if header := types.NewPartSetFromData(raw, types.BlockPartSizeBytes).Header(); len(raw) != meta.BlockSize || !header.Equals(meta.BlockID.PartSetHeader) {
		return nil, fmt.Errorf("own block %d is damaged: got %d bytes and part set %v, want %d and %v", height, len(raw), header, meta.BlockSize, meta.BlockID.PartSetHeader)
	}
	return answer, nil
}
