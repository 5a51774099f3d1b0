-- Bids with the facts of their auctions, in one category.
SELECT b.auction, b.bidder, b.price, b.date_time AS bid_time, a.item_name, a.initial_bid, a.expires, a.seller
FROM bid AS b JOIN auction AS a ON b.auction = a.id
WHERE a.category = 10;
