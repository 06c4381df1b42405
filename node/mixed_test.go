package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/app/program/programtest"
	"github.com/starling-kv/starling/tx"
)

// mixed makes random blocks of signed operations of all kinds, and text transactions: by accounts
// with their own grants, with quotas, with grants to everyone, and without any; by admins that are
// added and removed.
type mixed struct {
	rng *rand.Rand
	// codes and operations that succeeded, of all blocks so far
	codes map[tx.Code]int
	done  map[string]int
	// addresses of the programs that this chain's blocks deployed, and of those that were called
	programs, called [][]byte
}

// mixedGrants are the rights of genesis.
func mixedGrants() app.Genesis {
	hex := func(name string) string { return fmt.Sprintf("%x", mixedAccount(name)) }
	return app.Genesis{
		Open: true, Admins: []string{hex("root"), hex("root2")},
		Grants: []app.GenesisGrant{
			{Grantee: hex("alice"), Prefix: "s", Quota: 300_000}, {Grantee: hex("bob"), Prefix: "s-1"}, {Grantee: hex("bob"), Prefix: "t"},
			{Grantee: hex("bob"), Prefix: "q", Quota: 2000}, // which no admin changes
			{Grantee: app.Everyone, Prefix: "e", Quota: 20_000},
		},
	}
}

func mixedKey(name string) ed25519.PrivKey { return ed25519.GenPrivKeyFromSecret([]byte(name)) }

func mixedAccount(name string) []byte { return mixedKey(name).PubKey().Bytes() }

func (m *mixed) pick(from ...string) string { return from[m.rng.IntN(len(from))] }

// name returns an admin, a holder of a grant, or one of many strangers.
func (m *mixed) name() string {
	return m.pick("root", "root", "root2", "alice", "alice", "bob", "bob", fmt.Sprint("stranger ", m.rng.IntN(300)))
}

func (m *mixed) key() []byte {
	return fmt.Appendf(nil, "%s-%d", m.pick("s", "s", "t", "e", "q", "q", "key"), m.rng.IntN(3000))
}

// value is at times longer than a page.
func (m *mixed) value() []byte {
	most := 300
	if m.rng.IntN(20) == 0 {
		most = 10_000
	}
	return []byte(strings.Repeat("v", 1+m.rng.IntN(most)))
}

// prefix returns a prefix to grant or revoke, at times that of all programs.
func (m *mixed) prefix(version uint64) []byte {
	if version > app.GenesisVersion && m.rng.IntN(3) == 0 {
		return program.Prefix(nil)
	}
	return []byte(m.pick("s", "s-2", "s-3", "t", "e", "e-1", "u"))
}

// program returns an operation that only versions with programs have.
func (m *mixed) program() tx.Operation {
	switch n := m.rng.IntN(8); {
	case n < 2:
		key := fmt.Appendf(nil, "%s-number-%d", m.pick("s", "t", "e", "key"), m.rng.IntN(30))
		return tx.NewBoundedAdd(key, m.rng.Int64N(20)-6, -10, 100)
	case n == 2 || len(m.programs) == 0:
		return tx.NewDeploy(programtest.InitCode(m.rng), nil, 1_500_000, 40)
	}
	gas := uint64(150_000)
	if m.rng.IntN(10) == 0 {
		gas = 30_000 // too little
	}
	return tx.NewCall(m.programs[m.rng.IntN(len(m.programs))], programtest.Input(m.rng), gas, 6, 6)
}

func (m *mixed) grantee() []byte {
	if m.rng.IntN(4) == 0 {
		return nil
	}
	return mixedAccount(m.name())
}

func (m *mixed) operation(name string, height int64, version uint64, get func(key []byte) []byte) tx.Operation {
	if !strings.HasPrefix(name, "root") || m.rng.IntN(4) == 0 {
		key := m.key()
		switch m.rng.IntN(12) {
		case 0, 1:
			return tx.NewDelete(key)
		case 2, 3:
			if m.rng.IntN(3) == 0 {
				return tx.NewCompareAndPut(key, []byte("another"), m.value())
			}
			return tx.NewCompareAndPut(key, get(key), m.value())
		case 4:
			return tx.NewRead(key)
		case 5:
			return tx.NewGrant(mixedAccount(name), m.prefix(version), 0) // without the right
		case 6:
			return tx.NewRead(app.NonceKey(mixedAccount(m.name())))
		}
		return tx.NewPut(key, m.value())
	}
	switch m.rng.IntN(10) {
	case 0, 1, 2:
		return tx.NewGrant(m.grantee(), m.prefix(version), uint64(m.rng.IntN(2)*m.rng.IntN(100_000)))
	case 3:
		return tx.NewRevoke(m.grantee(), m.prefix(version))
	case 4, 5:
		return tx.NewSetValidator(mixedAccount(fmt.Sprint("validator ", m.rng.IntN(40))), uint64(m.rng.IntN(2)))
	case 6:
		return tx.NewSetAdmin(mixedAccount(m.pick("root", "root2", "root3")), m.rng.IntN(3) == 0)
	case 7:
		return tx.NewCancelUpgrade(version + 1)
	}
	return tx.NewScheduleUpgrade(version+uint64(m.rng.IntN(4)+2)/2, uint64(height+m.rng.Int64N(8)), "info")
}

// block returns the transactions of a block on the state of the replica. Most nonces are right.
func (m *mixed) block(r *replica, height int64) (txs [][]byte) {
	get := func(key []byte) []byte {
		if r.app.Height() == 0 {
			return nil
		}
		res, err := r.app.Query(context.Background(), &abci.RequestQuery{Path: app.PathKey, Data: key})
		require.NoError(r.t, err)
		require.Zero(r.t, res.Code, res.Log)
		return res.Value
	}
	info, err := r.app.Info(context.Background(), &abci.RequestInfo{})
	require.NoError(r.t, err)
	version, nonces := info.AppVersion, map[string]uint64{}
	for range m.rng.IntN(60) {
		if m.rng.IntN(20) == 0 {
			txs = append(txs, fmt.Appendf(nil, "%s=%s", m.key(), m.value()))
			continue
		}
		name := m.name()
		next, known := nonces[name]
		if value := get(app.NonceKey(mixedAccount(name))); !known && value != nil {
			next = binary.BigEndian.Uint64(value)
		}
		nonce := next
		var operations []tx.Operation
		for range 1 + m.rng.IntN(1+29*m.rng.IntN(2)) {
			operations = append(operations, m.operation(name, height, version, get))
		}
		if version > app.GenesisVersion && m.rng.IntN(3) == 0 {
			operations = append(operations[:m.rng.IntN(2)], m.program())
		}
		if m.rng.IntN(20) == 0 {
			nonce += uint64(m.rng.IntN(3))
		}
		raw, err := tx.Sign(mixedKey(name), r.genesis.ChainID, &tx.Body{Nonce: nonce, Operations: operations})
		require.NoError(r.t, err)
		if nonces[name] = nonce + 1; nonce > next {
			nonces[name] = next
		}
		txs = append(txs, raw)
	}
	return txs
}

// count notes what a block did.
func (m *mixed) count(txs [][]byte, chainID string, results []*abci.ExecTxResult) {
	for i, r := range results {
		m.codes[tx.Code(r.Code)]++
		decoded, err := tx.Decode(txs[i], chainID)
		if err != nil || decoded.Body == nil || r.Code != 0 {
			continue
		}
		for k, operation := range decoded.Body.Operations {
			m.done[fmt.Sprintf("%T", operation.Op)]++
			if call := operation.GetCall(); call != nil {
				m.called = append(m.called, call.To)
			}
			if operation.GetDeploy() != nil {
				result, err := tx.DecodeResult(r.Data)
				if err != nil {
					panic(err)
				}
				m.programs = append(m.programs, result.Results[k].Value)
			}
		}
	}
}
