package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

func ExampleClient_Put() {
	ctx := context.Background()
	address, genesis := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin), client.WithChainID(genesis.ChainID))
	if err != nil {
		log.Fatal(err)
	}
	result, err := c.Put(ctx, []byte("fruit/apple"), []byte("green"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("in a block:", result.Height > 0)
	// Output: in a block: true
}

// A verified read. The answer is proved by a header that was signed by the validators of the
// genesis document or their successors.
func ExampleClient_Get() {
	ctx := context.Background()
	address, genesis := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin), client.WithVerification(client.Trust{Genesis: genesis}))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Put(ctx, []byte("fruit/pear"), []byte("yellow")); err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"fruit/pear", "fruit/unicorn"} {
		v, err := c.Get(ctx, []byte(key))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: found %v %q, verified %v\n", key, v.Found, v.Value, v.Verified)
	}
	// Output:
	// fruit/pear: found true "yellow", verified true
	// fruit/unicorn: found false "", verified true
}

func ExampleClient_CompareAndPut() {
	ctx := context.Background()
	address, _ := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin))
	if err != nil {
		log.Fatal(err)
	}
	lock := []byte("fruit/lock")
	// only if it is free
	if _, err := c.CompareAndPut(ctx, lock, nil, []byte("alice")); err != nil {
		log.Fatal(err)
	}
	_, err = c.CompareAndPut(ctx, lock, nil, []byte("bob"))
	fmt.Println("bob has to wait:", errors.Is(err, &tx.Error{Code: tx.CodeCompareFailed}))
	// Output: bob has to wait: true
}

// Several operations take effect atomically.
func ExampleClient_Submit() {
	ctx := context.Background()
	address, _ := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin))
	if err != nil {
		log.Fatal(err)
	}
	result, err := c.Submit(ctx,
		tx.NewPut([]byte("fruit/basket/1"), []byte("cherry")),
		tx.NewPut([]byte("fruit/basket/2"), []byte("plum")),
		tx.NewRead([]byte("fruit/basket/1")),
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", result.Results[2].Value)
	// Output: cherry
}

// If, then, else in one transaction, executed atomically.
func ExampleClient_Txn() {
	ctx := context.Background()
	address, _ := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin))
	if err != nil {
		log.Fatal(err)
	}
	leader, term := []byte("fruit/leader"), []byte("fruit/term")
	for _, me := range []string{"alice", "bob"} {
		done, err := c.Txn(ctx).
			If(client.Absent(leader)).
			Then(tx.NewPut(leader, []byte(me)), tx.NewPut(term, []byte("1"))).
			Else(tx.NewRead(leader)).
			Commit()
		if err != nil {
			log.Fatal(err)
		}
		if done.Succeeded {
			fmt.Println(me, "leads")
		} else {
			fmt.Printf("%s follows %s\n", me, done.Results[0].Value)
		}
	}
	// Output:
	// alice leads
	// bob follows alice
}

func ExampleClient_Scan() {
	ctx := context.Background()
	address, genesis := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin), client.WithVerification(client.Trust{Genesis: genesis}))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Submit(ctx, tx.NewPut([]byte("fruit/x/1"), []byte("kiwi")), tx.NewPut([]byte("fruit/x/2"), []byte("lime"))); err != nil {
		log.Fatal(err)
	}
	prefix := []byte("fruit/x/")
	for entry, err := range c.Scan(ctx, prefix, client.PrefixEnd(prefix), client.Limit(1)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s = %s\n", entry.Key, entry.Value)
	}
	// Output:
	// fruit/x/1 = kiwi
	// fruit/x/2 = lime
}

func ExampleClient_NewCache() {
	ctx := context.Background()
	address, genesis := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin), client.WithVerification(client.Trust{Genesis: genesis}))
	if err != nil {
		log.Fatal(err)
	}
	prefix := []byte("fruit/cached/")
	cache, err := c.NewCache(ctx, prefix, client.PrefixEnd(prefix))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Put(ctx, []byte("fruit/cached/plum"), []byte("blue")); err != nil {
		log.Fatal(err)
	}
	if err := cache.Wait(ctx); err != nil { // a program calls it repeatedly
		log.Fatal(err)
	}
	value, _ := cache.Get([]byte("fruit/cached/plum"))
	fmt.Printf("%s, proved: %t\n", value, cache.State().Verified)
	// Output: blue, proved: true
}

func ExampleClient_Watch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	address, _ := demo()
	c, err := client.Dial(ctx, []string{address}, client.WithKey(admin))
	if err != nil {
		log.Fatal(err)
	}
	watcher, err := c.Watch(ctx, []byte("fruit/watched/"), client.WatchPrevious())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Put(ctx, []byte("fruit/watched/fig"), []byte("ripe")); err != nil {
		log.Fatal(err)
	}
	e, err := watcher.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s %s = %s (%t)\n", e.Kind, e.Key, e.Value, e.Previous == nil)
	// To continue later, keep the token: client.WatchFrom(watcher.Token()).
}
