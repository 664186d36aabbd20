// Runs go-nsq under the line protocol of ../clients/control.py; the first argument is nsqd's host:port,
// the second what control.py calls Wrapping.
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"
)

const (
	lookupdPoll  = time.Second
	backoffMax   = time.Second // the default is 2 minutes
	lineBytesMax = 16 << 20
)

type wrapping struct {
	TLS        bool   `json:"tls"`
	Snappy     bool   `json:"snappy"`
	Deflate    bool   `json:"deflate"`
	AuthSecret string `json:"auth_secret"`
}

type subscription struct {
	Topic              string   `json:"topic"`
	Channel            string   `json:"channel"`
	MaxInFlight        int      `json:"max_in_flight"`
	AutoFinish         bool     `json:"auto_finish"`
	MsgTimeoutMs       int      `json:"msg_timeout_ms"`
	HeartbeatIntervalS int      `json:"heartbeat_interval_s"`
	Deflate            bool     `json:"deflate"`
	Lookupds           []string `json:"lookupd_http_addresses"`
}

type operation struct {
	Op           string       `json:"op"`
	Topic        string       `json:"topic"`
	Bodies       [][]byte     `json:"bodies"` // encoding/json reads base64
	Body         []byte       `json:"body"`
	DeferMs      int          `json:"defer_ms"`
	DelayMs      int          `json:"delay_ms"`
	Consumer     string       `json:"consumer"`
	MessageID    string       `json:"message_id"`
	Subscription subscription `json:"subscription"`
}

// client has one producer, made at first use, and consumers by name.
type client struct {
	address   string
	asked     wrapping
	producer  *nsq.Producer
	consumers map[string]*nsq.Consumer

	mutex sync.Mutex // of what follows: handlers run beside the operations
	held  map[string]*nsq.Message
	out   *json.Encoder
}

func (c *client) emit(event map[string]any) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err := c.out.Encode(event); err != nil {
		os.Exit(1)
	}
}

func (c *client) config() *nsq.Config {
	config := nsq.NewConfig()
	config.LookupdPollInterval = lookupdPoll
	config.MaxBackoffDuration = backoffMax
	config.Snappy = c.asked.Snappy
	config.Deflate = c.asked.Deflate
	config.AuthSecret = c.asked.AuthSecret
	if c.asked.TLS {
		config.TlsV1 = true
		config.TlsConfig = &tls.Config{InsecureSkipVerify: true}
	}
	return config
}

func (c *client) connected() (*nsq.Producer, error) {
	if c.producer == nil {
		producer, err := nsq.NewProducer(c.address, c.config())
		if err != nil {
			return nil, err
		}
		producer.SetLoggerLevel(nsq.LogLevelWarning)
		c.producer = producer
	}
	return c.producer, nil
}

func (c *client) publish(each operation) error {
	producer, err := c.connected()
	if err != nil {
		return err
	}
	answers := make(chan *nsq.ProducerTransaction, len(each.Bodies))
	for _, body := range each.Bodies {
		if err := producer.PublishAsync(each.Topic, body, answers); err != nil {
			return err
		}
	}
	for range each.Bodies {
		if answer := <-answers; answer.Error != nil {
			return answer.Error
		}
	}
	return nil
}

func (c *client) consume(each operation) error {
	wanted := each.Subscription
	config := c.config()
	config.MaxInFlight = wanted.MaxInFlight
	config.MsgTimeout = time.Duration(wanted.MsgTimeoutMs) * time.Millisecond
	config.HeartbeatInterval = time.Duration(wanted.HeartbeatIntervalS) * time.Second
	config.Deflate = config.Deflate || wanted.Deflate
	consumer, err := nsq.NewConsumer(wanted.Topic, wanted.Channel, config)
	if err != nil {
		return err
	}
	consumer.SetLogger(errorLog{c, each.Consumer}, nsq.LogLevelError)
	name := each.Consumer
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		id := string(message.ID[:])
		message.DisableAutoResponse()
		if !wanted.AutoFinish {
			c.mutex.Lock()
			c.held[name+" "+id] = message
			c.mutex.Unlock()
		}
		c.emit(map[string]any{
			"event": "message", "consumer": name, "id": id,
			"attempts": message.Attempts, "body": message.Body,
		})
		if wanted.AutoFinish {
			message.Finish()
		}
		return nil
	}))
	c.consumers[name] = consumer
	if len(wanted.Lookupds) > 0 {
		return consumer.ConnectToNSQLookupds(wanted.Lookupds)
	}
	return consumer.ConnectToNSQD(c.address)
}

func (c *client) message(each operation) (*nsq.Message, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	message, ok := c.held[each.Consumer+" "+each.MessageID]
	if !ok {
		return nil, fmt.Errorf("%s has no message %s", each.Consumer, each.MessageID)
	}
	return message, nil
}

func (c *client) answer(each operation) error {
	message, err := c.message(each)
	if err != nil {
		return err
	}
	switch each.Op {
	case "finish":
		message.Finish()
	case "requeue":
		message.Requeue(time.Duration(each.DelayMs) * time.Millisecond)
	case "touch":
		message.Touch()
	}
	return nil
}

func (c *client) run(each operation) error {
	switch each.Op {
	case "publish":
		return c.publish(each)
	case "multi_publish":
		producer, err := c.connected()
		if err != nil {
			return err
		}
		return producer.MultiPublish(each.Topic, each.Bodies)
	case "deferred_publish":
		producer, err := c.connected()
		if err != nil {
			return err
		}
		delay := time.Duration(each.DeferMs) * time.Millisecond
		return producer.DeferredPublish(each.Topic, delay, each.Body)
	case "consume":
		return c.consume(each)
	case "finish", "requeue", "touch":
		return c.answer(each)
	case "close":
		consumer := c.consumers[each.Consumer]
		delete(c.consumers, each.Consumer)
		consumer.Stop()
		<-consumer.StopChan
		return nil
	}
	return fmt.Errorf("no such operation: %s", each.Op)
}

// errorLog gives the errors that go-nsq logs, error frames among them, to the test.
type errorLog struct {
	client   *client
	consumer string
}

func (l errorLog) Output(_ int, text string) error {
	l.client.emit(map[string]any{"event": "error", "consumer": l.consumer, "text": text})
	return nil
}

func main() {
	log.SetOutput(os.Stderr)
	c := &client{
		address:   os.Args[1],
		consumers: map[string]*nsq.Consumer{},
		held:      map[string]*nsq.Message{},
		out:       json.NewEncoder(os.Stdout),
	}
	if len(os.Args) > 2 {
		if err := json.Unmarshal([]byte(os.Args[2]), &c.asked); err != nil {
			log.Fatal(err)
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 64<<10), lineBytesMax)
	for lines.Scan() {
		var each operation
		err := json.Unmarshal(lines.Bytes(), &each)
		if err == nil {
			err = c.run(each)
		}
		if err != nil {
			c.emit(map[string]any{"event": "failed", "reason": err.Error()})
		} else {
			c.emit(map[string]any{"event": "done"})
		}
	}
}
