// Seats sells the seats of a theatre, each of them once, however many programs sell at a time.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: seats HOME SEAT BUYER")
		os.Exit(2)
	}
	if err := sell(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "seats:", err)
		os.Exit(1)
	}
}

func sell(ctx context.Context, home, seat, buyer string) error {
	key, err := client.NewKeyring(filepath.Join(home, "keys")).Get("alice")
	if err != nil {
		return err
	}
	genesis, err := types.GenesisDocFromFile(filepath.Join(home, "config", "genesis.json"))
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, []string{"http://127.0.0.1:26657"},
		client.WithKey(key), client.WithVerification(client.Trust{Genesis: genesis}))
	if err != nil {
		return err
	}

	place := []byte("seat/" + seat)
	sale, err := c.Txn(ctx).
		If(client.Absent(place)).
		Then(tx.NewPut(place, []byte(buyer))).
		Else(tx.NewRead(place)).
		Commit()
	if err != nil {
		return err
	}
	if sale.Succeeded {
		fmt.Printf("sold in block %d\n", sale.Height)
	} else {
		fmt.Printf("%s has it already\n", sale.Results[0].Value)
	}

	owner, err := c.Get(ctx, place)
	if err != nil {
		return err
	}
	fmt.Printf("proved: after block %d, seat %s belongs to %s\n", owner.Height, seat, owner.Value)
	return nil
}
