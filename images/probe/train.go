package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// A trainer that reads torchrun's variables. Rank 0 listens at MASTER_PORT. In each round, all other ranks send it a
// number and receive the sum of all numbers. FAIL_ONCE=RANK makes that rank fail in the second round of the first
// attempt.
type job struct {
	address, port        string
	rank, world          int
	attempt, failOnce    int
	rounds, milliseconds int // the number of rounds, and the pause after each
	patience             time.Duration
}

func fromEnvironment(get func(string) string) (job, error) {
	var wrong []error
	number := func(name, otherwise string) int {
		text := get(name)
		if text == "" {
			text = otherwise
		}
		value, err := strconv.Atoi(text)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s must be a number, not %q", name, text))
		}
		return value
	}
	j := job{
		address: get("MASTER_ADDR"), port: get("MASTER_PORT"), rank: number("RANK", ""), world: number("WORLD_SIZE", ""),
		attempt: number("STAGECOACH_ATTEMPT", "1"), failOnce: number("FAIL_ONCE", "-1"),
		rounds: number("ROUNDS", "3"), milliseconds: number("PAUSE_MILLISECONDS", "0"), patience: 2 * time.Minute,
	}
	return j, errors.Join(wrong...)
}

// The error of a rank that lost another rank. The probe then exits with code 75, because the other rank is the cause.
var errLostPeer = errors.New("lost a peer")

func (j job) train(ctx context.Context, out io.Writer) error {
	peers, err := j.join(ctx)
	if err != nil {
		return err
	}
	for _, peer := range peers {
		defer peer.Close()
		defer context.AfterFunc(ctx, func() { peer.Close() })()
	}
	for round := 1; round <= j.rounds; round++ {
		if round == 2 && j.attempt == 1 && j.rank == j.failOnce {
			return fmt.Errorf("rank %d fails in attempt 1, as FAIL_ONCE asks", j.rank)
		}
		sum, err := j.reduce(round*(j.rank+1), peers)
		if err != nil {
			return fmt.Errorf("round %d: %w: %w", round, errLostPeer, err)
		}
		if expected := round * j.world * (j.world + 1) / 2; sum != expected {
			return fmt.Errorf("round %d sums to %d, not %d", round, sum, expected)
		}
		fmt.Fprintf(out, "attempt %d rank %d of %d: round %d sums to %d\n", j.attempt, j.rank, j.world, round, sum)
		time.Sleep(time.Duration(j.milliseconds) * time.Millisecond)
	}
	return nil
}

type peer struct {
	net.Conn
	*json.Encoder
	*json.Decoder
}

// Connects rank 0 with all other ranks. Returns all other ranks on rank 0, and only rank 0 on each other rank.
func (j job) join(ctx context.Context) (peers []peer, err error) {
	meet := func(c net.Conn) { peers = append(peers, peer{c, json.NewEncoder(c), json.NewDecoder(c)}) }
	if j.rank != 0 {
		err = until(ctx, j.patience, func() error {
			c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(j.address, j.port))
			if err == nil {
				meet(c)
			}
			return err
		})
		return peers, err
	}
	listener, err := net.Listen("tcp", ":"+j.port)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, j.patience)
	defer cancel()
	context.AfterFunc(ctx, func() { listener.Close() })
	for len(peers) < j.world-1 {
		c, err := listener.Accept()
		if err != nil {
			return peers, fmt.Errorf("%d of %d others came: %w", len(peers), j.world-1, cmp.Or(ctx.Err(), err))
		}
		meet(c)
	}
	return peers, nil
}

func (j job) reduce(sum int, peers []peer) (int, error) {
	if j.rank != 0 {
		err := peers[0].Encode(sum)
		if err == nil {
			err = peers[0].Decode(&sum)
		}
		return sum, err
	}
	for _, peer := range peers {
		var theirs int
		if err := peer.Decode(&theirs); err != nil {
			return 0, err
		}
		sum += theirs
	}
	for _, peer := range peers {
		if err := peer.Encode(sum); err != nil {
			return 0, err
		}
	}
	return sum, nil
}
