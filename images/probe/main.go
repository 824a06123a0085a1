// The probe has programs for tests that are not Stagecoach's: a torchrun-style trainer, and small tools for pods.
//
//	probe                    all-reduce over all ranks (train.go)
//	probe serve [ADDRESS]    answer HTTP with the pod's name and the path, on :8080 by default
//	probe lookup HOST:PORT   look the name up and fetch its page; retry for a minute
//	probe eat MIB            take memory, then do nothing until SIGTERM
//	probe sleep              do nothing until SIGTERM
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := run(ctx, append(os.Args[1:], "", ""))
	if ctx.Err() != nil {
		fmt.Println("asked to leave")
		os.Exit(143)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		if errors.Is(err, errLostPeer) {
			os.Exit(75)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch args[0] {
	case "":
		job, err := fromEnvironment(os.Getenv)
		if err != nil {
			return err
		}
		return job.train(ctx, os.Stdout)
	case "serve":
		return serve(ctx, args[1])
	case "lookup":
		return until(ctx, time.Minute, func() error { return lookup(ctx, args[1]) })
	case "eat":
		if err := eat(args[1]); err != nil {
			return err
		}
		fallthrough
	case "sleep":
		<-ctx.Done()
		return nil
	}
	return fmt.Errorf("there is no command %q: serve, lookup, eat, sleep or none", args[0])
}

func serve(ctx context.Context, address string) error {
	if address == "" {
		address = ":8080"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	context.AfterFunc(ctx, func() { listener.Close() })
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _ := os.Hostname()
		fmt.Fprintln(w, host, r.Method, r.URL.Path)
	}))
}

func lookup(ctx context.Context, target string) error {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return err
	}
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get("http://" + target + "/")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	fmt.Printf("%s is at %v and says %s: %s", host, addresses, response.Status, page)
	return err
}

var held []byte

func eat(mebibytes string) error {
	count, err := strconv.Atoi(mebibytes)
	if err != nil {
		return fmt.Errorf("eat takes a number of MiB: %w", err)
	}
	held = make([]byte, count<<20)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1 // the kernel gives a page when it is written to
	}
	fmt.Println("holding", count, "MiB")
	return nil
}

// Retries until `try` succeeds, the time is over or the context ends. Prints the error every few seconds.
func until(ctx context.Context, patience time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for told := (time.Time{}); ; {
		err := try()
		if err == nil {
			return nil
		}
		if time.Since(told) > 3*time.Second {
			told = time.Now()
			fmt.Println("trying again:", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
