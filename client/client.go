package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cometbft/cometbft/crypto/ed25519"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
)

// Client talks to one chain. It is safe for concurrent use; writes of one key are ordered.
type Client struct {
	primary   RPC
	witnesses []RPC
	chainID   string
	key       ed25519.PrivKey // nil: reads only
	verifier  *verifier       // nil: the primary is trusted

	accounts struct {
		sync.Mutex
		byKey map[string]*account
	}
}

// Option configures a Client.
type Option func(*Client) error

// WithKey makes the client sign writes with key.
func WithKey(key ed25519.PrivKey) Option {
	return func(c *Client) error {
		if len(key) != ed25519.PrivateKeySize {
			return fmt.Errorf("client: a private key has %d bytes, this one has %d", ed25519.PrivateKeySize, len(key))
		}
		c.key = key
		return nil
	}
}

// WithChainID names the chain. A client that signs should have it (or a genesis document in
// WithVerification). Otherwise it trusts the node, and a lying node could have a transaction signed
// for another chain on which the key holds grants too.
func WithChainID(id string) Option {
	return func(c *Client) error {
		if c.chainID != "" && c.chainID != id {
			return fmt.Errorf("client: chain id %q was requested, but the trusted genesis is of %q", id, c.chainID)
		}
		c.chainID = id
		return nil
	}
}

// WithVerification requires a proof for every read, starting from trust.
func WithVerification(trust Trust) Option {
	return func(c *Client) error {
		v, err := newVerifier(trust)
		if err != nil {
			return err
		}
		c.verifier = v
		if trust.Genesis != nil {
			return WithChainID(trust.Genesis.ChainID)(c)
		}
		return nil
	}
}

// Dial connects to nodes of one chain by their RPC addresses. The first that answers is the
// primary, to which all calls go; the others are witnesses of its headers (see the package
// comment).
func Dial(ctx context.Context, addresses []string, options ...Option) (*Client, error) {
	nodes := make([]RPC, 0, len(addresses))
	for _, address := range addresses {
		n, err := NewRPC(address)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		nodes = append(nodes, n)
	}
	return New(ctx, nodes, options...)
}

// New is like Dial, for nodes that are reached in another way.
func New(ctx context.Context, nodes []RPC, options ...Option) (*Client, error) {
	c := new(Client)
	c.accounts.byKey = make(map[string]*account)
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, err
		}
	}
	if err := c.connect(ctx, nodes); err != nil {
		return nil, err
	}
	if c.verifier != nil {
		c.verifier.chainID, c.verifier.primary, c.verifier.witnesses = c.chainID, c.primary, c.witnesses
	}
	return c, nil
}

// connect makes the first node that answers the primary, and checks its chain id.
func (c *Client) connect(ctx context.Context, nodes []RPC) error {
	var failures []error
	for i, n := range nodes {
		status, err := n.Status(ctx)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", n.Remote(), err))
			continue
		}
		network := status.NodeInfo.Network
		if c.chainID == "" {
			c.chainID = network
		}
		if network != c.chainID {
			return fmt.Errorf("%w: %s serves %q, not %q", ErrWrongChain, n.Remote(), network, c.chainID)
		}
		c.primary = n
		for j, other := range nodes {
			if j != i && other.Remote() != n.Remote() {
				c.witnesses = append(c.witnesses, other)
			}
		}
		return nil
	}
	if len(nodes) == 0 {
		return fmt.Errorf("%w: no address was given", ErrUnreachable)
	}
	return fmt.Errorf("%w: is one running there? %w", ErrUnreachable, errors.Join(failures...))
}

// ChainID returns the name of the chain.
func (c *Client) ChainID() string { return c.chainID }

// Account returns the public key of the account that signs writes, or nil without a key.
func (c *Client) Account() []byte {
	if c.key == nil {
		return nil
	}
	return c.key.PubKey().Bytes()
}

// Status returns what the primary reports about itself.
func (c *Client) Status(ctx context.Context) (*ctypes.ResultStatus, error) {
	status, err := c.primary.Status(ctx)
	if err != nil {
		return nil, c.callError("status", err)
	}
	return status, nil
}

// Query sends a query of the application (docs/spec/queries.md) and returns the answer unverified.
// Height 0 is the latest.
func (c *Client) Query(ctx context.Context, path string, data []byte, height int64, prove bool) (*ctypes.ResultABCIQuery, error) {
	result, err := c.primary.ABCIQueryWithOptions(ctx, path, data, rpcclient.ABCIQueryOptions{Height: height, Prove: prove})
	if err != nil {
		return nil, c.callError("query "+path, err)
	}
	if code := result.Response.Code; code != 0 {
		return nil, &QueryError{Path: path, Code: txCode(code), Log: result.Response.Log}
	}
	return result, nil
}

// callError adds what was tried and where. It distinguishes a node that cannot be reached from one
// that answered with an error.
func (c *Client) callError(what string, err error) error {
	if answered(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s at %s: %w", what, c.primary.Remote(), err)
	}
	return fmt.Errorf("%w: %s at %s: %w", ErrUnreachable, what, c.primary.Remote(), err)
}
