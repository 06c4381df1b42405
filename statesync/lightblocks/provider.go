package lightblocks

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/transport"
)

// Provider asks one peer over the transport. It implements Peer and the provider of CometBFT's
// light client. Its results have the right chain and height and are self-consistent, but not
// verified. It is safe for concurrent use.
type Provider struct {
	chainID string
	conn    transport.Conn
	newest  atomic.Int64 // the highest height of a block that the peer sent
}

var _ RangePeer = (*Provider)(nil)

// NewProvider returns a Provider that sends requests over conn. The caller closes conn.
func NewProvider(chainID string, conn transport.Conn) *Provider {
	return &Provider{chainID: chainID, conn: conn}
}

// ID returns the ID of the peer.
func (p *Provider) ID() transport.ID { return p.conn.Remote().ID }

// ChainID implements provider.Provider.
func (p *Provider) ChainID() string { return p.chainID }

// String names the peer in CometBFT's logs.
func (p *Provider) String() string { return "transport{" + p.conn.Remote().String() + "}" }

// LightBlock implements provider.Provider; height 0 is the peer's newest. CometBFT's light client
// compares errors by identity, so LightBlock returns CometBFT's own errors: ErrLightBlockNotFound
// and ErrHeightTooHigh (the peer does not have the block), ErrNoResponse (the peer is busy, refuses
// or failed), and ErrBadLightBlock (no honest peer sends such a response). Other errors are those
// of the connection or of ctx.
func (p *Provider) LightBlock(ctx context.Context, height int64) (*types.LightBlock, error) {
	if height < 0 {
		return nil, fmt.Errorf("height %d is negative", height)
	}
	body, err := p.conn.Call(ctx, transport.Call{Method: MethodLightBlock, Body: encodeHeight(height), Max: MaxLightBlock})
	if err != nil {
		return nil, p.translate(ctx, height, err)
	}
	lb, err := decodeLightBlock(body, p.chainID, height)
	if err != nil {
		return nil, provider.ErrBadLightBlock{Reason: err}
	}
	for seen := p.newest.Load(); lb.Height > seen && !p.newest.CompareAndSwap(seen, lb.Height); seen = p.newest.Load() {
	}
	return lb, nil
}

func (p *Provider) translate(ctx context.Context, height int64, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, transport.ErrGone):
		if newest := p.newest.Load(); newest > 0 && height > newest {
			return provider.ErrHeightTooHigh
		}
		return provider.ErrLightBlockNotFound
	case errors.Is(err, transport.ErrBusy), errors.Is(err, transport.ErrRefused), errors.Is(err, transport.ErrFailed):
		return provider.ErrNoResponse
	case errors.Is(err, transport.ErrTooLong), errors.Is(err, transport.ErrProtocol):
		return provider.ErrBadLightBlock{Reason: err}
	}
	return err
}

// HeaderRange implements RangePeer. count is at most MaxHeaders. The errors are those of
// LightBlock.
func (p *Provider) HeaderRange(ctx context.Context, from int64, count int) ([]Ancestor, error) {
	if from < 1 || count < 1 || count > MaxHeaders {
		return nil, fmt.Errorf("there are no %d headers from height %d", count, from)
	}
	body, err := p.conn.Call(ctx, transport.Call{Method: MethodHeaders, Body: encodeRange(from, count), Max: MaxLightBlock})
	if err != nil {
		return nil, p.translate(ctx, from, err)
	}
	headers, err := decodeHeaders(body, p.chainID, from, count)
	if err != nil {
		return nil, provider.ErrBadLightBlock{Reason: err}
	}
	return headers, nil
}

// ConsensusParams returns CometBFT's parameters at a height. The errors are those of LightBlock.
func (p *Provider) ConsensusParams(ctx context.Context, height int64) (types.ConsensusParams, error) {
	if height <= 0 {
		return types.ConsensusParams{}, fmt.Errorf("there are no consensus parameters at height %d", height)
	}
	body, err := p.conn.Call(ctx, transport.Call{Method: MethodConsensusParams, Body: encodeHeight(height), Max: MaxParams})
	if err != nil {
		return types.ConsensusParams{}, p.translate(ctx, height, err)
	}
	params, err := decodeParams(body)
	if err != nil {
		return params, provider.ErrBadLightBlock{Reason: err}
	}
	return params, nil
}

// ReportEvidence implements provider.Provider.
func (p *Provider) ReportEvidence(ctx context.Context, ev types.Evidence) error {
	body, err := encodeEvidence(ev)
	if err != nil {
		return fmt.Errorf("encode evidence: %w", err)
	}
	if len(body) > MaxEvidence {
		return fmt.Errorf("evidence of %d bytes is longer than a request can be (%d)", len(body), MaxEvidence)
	}
	if _, err := p.conn.Call(ctx, transport.Call{Method: MethodEvidence, Body: body, Max: 16}); err != nil {
		return fmt.Errorf("report evidence to %s: %w", p.conn.Remote(), err)
	}
	return nil
}
