package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cometbft/cometbft/crypto/ed25519"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"

	"github.com/starling-kv/starling/tx"
)

// Client accesses one chain. It is safe for concurrent use; writes of one key are ordered.
type Client struct {
	pool      *pool
	witnesses []RPC // from WithWitnesses
	chainID   string
	key       ed25519.PrivKey // nil: reads only
	verifier  *verifier       // nil: nodes are trusted
	groups    *groups         // from WithGroupCommit

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

// WithChainID sets the chain id. A client that signs should set it (or a genesis document in
// WithVerification). Otherwise it trusts the node, and a Byzantine node could obtain a signature
// for another chain on which the key has grants, too.
func WithChainID(id string) Option {
	return func(c *Client) error {
		if c.chainID != "" && c.chainID != id {
			return fmt.Errorf("client: chain id %q was requested, but the trusted genesis document has %q", id, c.chainID)
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

// WithWitnesses adds nodes, by their RPC addresses, that only confirm headers (see the package
// comment). Data and transactions use only the nodes of Dial. Use it to read from one node and
// still be protected from a fork. It requires WithVerification.
func WithWitnesses(addresses ...string) Option {
	return func(c *Client) error {
		for _, address := range addresses {
			n, err := NewRPC(address)
			if err != nil {
				return fmt.Errorf("client: witness: %w", err)
			}
			c.witnesses = append(c.witnesses, n)
		}
		return nil
	}
}

// Dial connects to nodes of one chain by their RPC addresses. One reachable node is enough. Each
// call goes to the nearest node that is not behind, and to others if that node is slow or fails
// (see the package comment). The context limits only Dial.
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

// New is like Dial for custom implementations of RPC.
func New(ctx context.Context, nodes []RPC, options ...Option) (*Client, error) {
	c := new(Client)
	c.accounts.byKey = make(map[string]*account)
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, err
		}
	}
	if len(c.witnesses) > 0 && c.verifier == nil {
		return nil, errors.New("client: witnesses require verification: use WithVerification, too")
	}
	if err := c.connect(ctx, nodes); err != nil {
		return nil, err
	}
	if c.verifier != nil {
		c.verifier.chainID, c.verifier.pool = c.chainID, c.pool
	}
	return c, nil
}

// connect waits for the first node that answers. If no chain id is given, the client takes that
// node's.
func (c *Client) connect(ctx context.Context, nodes []RPC) error {
	if len(nodes) == 0 {
		return fmt.Errorf("%w: no address was given", ErrUnreachable)
	}
	c.pool = newPool(nodes, c.witnesses, c.chainID)
	_, _, err := ask(ctx, c.pool, question[struct{}]{
		what: "connect (is a node running there?)",
		// Admitting the node is enough.
		call:  func(context.Context, *endpoint) (struct{}, error) { return struct{}{}, nil },
		final: func(err error) bool { return errors.Is(err, ErrWrongChain) },
	})
	if err != nil {
		return err
	}
	c.chainID = c.pool.chainID()
	c.pool.refresh(ctx)
	return nil
}

// ChainID returns the chain id.
func (c *Client) ChainID() string { return c.chainID }

// Account returns the public key of the account that signs writes; nil without a key.
func (c *Client) Account() []byte {
	if c.key == nil {
		return nil
	}
	return c.key.PubKey().Bytes()
}

// Status returns the status of one of the nodes, unverified.
func (c *Client) Status(ctx context.Context) (*ctypes.ResultStatus, error) {
	status, _, err := ask(ctx, c.pool, question[*ctypes.ResultStatus]{
		what:  "status",
		short: true,
		call:  func(ctx context.Context, e *endpoint) (*ctypes.ResultStatus, error) { return e.Status(ctx) },
	})
	return status, err
}

// Query sends a query of the application (docs/spec/queries.md) and returns the answer unverified.
// Height 0 means the node's latest height. With several addresses it may be older than that of an
// earlier query, unlike with Get and Range.
func (c *Client) Query(ctx context.Context, path string, data []byte, height int64, prove bool) (*ctypes.ResultABCIQuery, error) {
	result, _, err := ask(ctx, c.pool, question[*ctypes.ResultABCIQuery]{
		what:  "query " + path,
		final: refusedByAll,
		call: func(ctx context.Context, e *endpoint) (*ctypes.ResultABCIQuery, error) {
			return queryOne(ctx, e, path, data, rpcclient.ABCIQueryOptions{Height: height, Prove: prove})
		},
	})
	return result, err
}

// queryOne queries one node.
func queryOne(ctx context.Context, e *endpoint, path string, data []byte, options rpcclient.ABCIQueryOptions) (*ctypes.ResultABCIQuery, error) {
	result, err := e.ABCIQueryWithOptions(ctx, path, data, options)
	if err != nil {
		return nil, err
	}
	if code := result.Response.Code; code != 0 {
		return nil, &QueryError{Path: path, Code: txCode(code), Log: result.Response.Log}
	}
	return result, nil
}

// refusedByAll reports whether err refuses a query for a reason that does not depend on the node,
// such as the heights that it keeps, what it can read, or its load.
func refusedByAll(err error) bool {
	var refused *QueryError
	return errors.As(err, &refused) && refused.Code != tx.CodeUnknownHeight && refused.Code != tx.CodeUnreadable && refused.Code != tx.CodeBusy
}
